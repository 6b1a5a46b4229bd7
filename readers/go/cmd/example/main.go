package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"tidegate.example/reader"
)

func main() {
	if err := read(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func read(ctx context.Context, url string) error {
	gate, err := reader.Connect(ctx, url, "flights", nil) // redis://localhost:6379, or cassandra://host1,host2/keyspace
	if err != nil {
		return err
	}
	defer gate.Close()

	aircraft, err := gate.Get(ctx, "aircraft", "N14228") // nil: there is none
	if err != nil {
		return err
	}
	fmt.Println(aircraft["carrier"], aircraft["flights"])

	answer, err := gate.GetMany(ctx, map[string][]reader.Key{ // all at one version
		"aircraft": {{"N14228"}, {"N24211"}}, "legs": {{"EWR", 1545}},
	})
	if err != nil {
		return err
	}
	fmt.Println(answer.Version, answer.Rows["aircraft"][1] == nil, answer.Rows["legs"][0]["dest"])

	snapshot, err := gate.Snapshot(ctx, 0, 0) // one version for several reads, kept by a lease until Close
	if err != nil {
		return err
	}
	defer snapshot.Close()
	rows, err := snapshot.Scan(ctx, "airports")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		fmt.Println(rows.Key()[0], rows.Row()["delay"])
	}
	var expired *reader.SnapshotExpiredError
	if errors.As(rows.Err(), &expired) {
		fmt.Println("the version was retired: take a new snapshot")
	}
	return rows.Err()
}
