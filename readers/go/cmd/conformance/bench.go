package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"tidegate.example/reader"
)

// work is one kind of read: by the reader, and by the bare client of the same rows.
type work struct {
	name         string
	reader, bare func() error
}

// bench measures reads of a namespace that benchmarks/bench_readers.py has written, alternately with bare reads of plain
// hashes, and prints medians as JSON: microseconds, and the round trips of one call.
func bench(arguments []string) {
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	rounds := flags.Int("rounds", 2_000, "calls of each kind")
	keyGroups := flags.Int("key-groups", 128, "those of the namespace")
	flags.Parse(arguments)
	url, namespace := flags.Arg(0), flags.Arg(1)
	direct, err := worksAt(url, namespace, *keyGroups)
	counted, through := counting(url)
	slow, errCounted := worksAt(through, namespace, *keyGroups)
	if err != nil || errCounted != nil {
		log.Fatal(err, errCounted)
	}
	results := map[string]map[string]float64{}
	for at, each := range direct {
		calls := *rounds
		if each.name == "scan" {
			calls = max(*rounds/20, 10)
		}
		found := map[string]float64{}
		ours, bare := make([]float64, calls), make([]float64, calls)
		for round := -calls / 10; round < calls; round++ {
			began := time.Now()
			errOurs := each.reader()
			middle := time.Now()
			errBare := each.bare()
			if errOurs != nil || errBare != nil {
				log.Fatal(each.name, errOurs, errBare)
			}
			if round >= 0 {
				ours[round], bare[round] = float64(middle.Sub(began).Nanoseconds())/1e3, float64(time.Since(middle).Nanoseconds())/1e3
			}
		}
		slices.Sort(ours)
		slices.Sort(bare)
		found["us"], found["bare_us"] = ours[calls/2], bare[calls/2]
		for name, one := range map[string]func() error{"round_trips": slow[at].reader, "bare_round_trips": slow[at].bare} {
			one() // it connects
			counted.Store(0)
			one()
			found[name] = float64(counted.Load())
		}
		results[each.name] = found
	}
	json.NewEncoder(os.Stdout).Encode(results)
}

// worksAt reads the keys k0 to k39 of two tables, k0 to k40 of a third one, and all rows of a fourth.
func worksAt(url, namespace string, keyGroups int) ([]work, error) {
	ctx := context.Background()
	gate, err := reader.Connect(ctx, url, namespace, nil)
	if err != nil {
		return nil, err
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(options)
	keys, fields := map[string][]reader.Key{}, map[string][]string{}
	for at, table := range []string{"one", "two", "three"} {
		for number := range 40 + at/2 {
			key := fmt.Sprintf("k%d", number)
			group := reader.KeyGroup([]byte(key), keyGroups, 1)
			hash := fmt.Sprintf("bare:%s:%d", table, group)
			keys[table], fields[hash] = append(keys[table], reader.Key{key}), append(fields[hash], key)
		}
	}
	return []work{
		{"1 key", func() error {
			_, err := gate.Get(ctx, "one", "k1")
			return err
		}, func() error {
			return client.HGet(ctx, fmt.Sprintf("bare:one:%d", reader.KeyGroup([]byte("k1"), keyGroups, 1)), "k1").Err()
		}},
		{"121 keys of 3 tables", func() error {
			_, err := gate.GetMany(ctx, keys)
			return err
		}, func() error {
			pipe := client.Pipeline()
			for hash, each := range fields {
				pipe.HMGet(ctx, hash, each...)
			}
			_, err := pipe.Exec(ctx)
			return err
		}},
		{"scan", func() error {
			rows, err := gate.Scan(ctx, "scanned")
			if err != nil {
				return err
			}
			for rows.Next() {
			}
			return rows.Err()
		}, func() error {
			pipe := client.Pipeline()
			for group := range keyGroups {
				pipe.HGetAll(ctx, fmt.Sprintf("bare:scanned:%d", group))
			}
			_, err := pipe.Exec(ctx)
			return err
		}},
	}, nil
}

// counting returns a URL of a proxy on this machine, and its number of round trips: of times that a client sends after
// the server has answered.
func counting(url string) (*atomic.Int64, string) {
	scheme, rest, _ := strings.Cut(url, "://")
	host, path, _ := strings.Cut(rest, "/")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	counted, answered := &atomic.Int64{}, &atomic.Bool{}
	answered.Store(true)
	copyAll := func(to, from net.Conn, each func()) {
		buffer := make([]byte, 1<<16)
		for {
			count, err := from.Read(buffer)
			if count > 0 {
				each()
				to.Write(buffer[:count])
			}
			if err != nil {
				to.Close()
				return
			}
		}
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", host)
			if err != nil {
				log.Fatal(err)
			}
			go copyAll(client, server, func() { answered.Store(true) })
			go copyAll(server, client, func() {
				if answered.CompareAndSwap(true, false) {
					counted.Add(1)
				}
			})
		}
	}()
	return counted, scheme + "://" + listener.Addr().String() + "/" + path
}
