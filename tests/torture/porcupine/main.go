// Second opinion on histories: is the visible version of a namespace one linearizable register?
//
//	porcupine HISTORY...
//
// Each file has one JSON object per operation, as register.py writes them. For each file one line is
// printed: "linearizable", "not linearizable" or "unknown" (the search took too long).
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

const limit = 30 * time.Second

type operation struct {
	Kind    string `json:"kind"`
	Version int    `json:"version"`
	Client  int    `json:"client"`
	Began   int64  `json:"began"`
	Ended   int64  `json:"ended"`
}

// The register holds the visible version. It moves by one publish of exactly the next version; a commit that
// returned finds its version or a later one; a look finds exactly what is there.
var register = porcupine.Model{
	Init: func() interface{} { return 0 },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		visible, done := state.(int), input.(operation)
		switch done.Kind {
		case "publish":
			return done.Version == visible+1, done.Version
		case "returned":
			return visible >= done.Version, visible
		case "look":
			return visible == done.Version, visible
		}
		return false, visible
	},
}

func read(path string) []porcupine.Operation {
	file, err := os.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	var operations []porcupine.Operation
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var done operation
		if err := json.Unmarshal(lines.Bytes(), &done); err != nil {
			log.Fatalf("%s: %v", path, err)
		}
		operations = append(operations, porcupine.Operation{
			ClientId: done.Client, Input: done, Call: done.Began, Output: nil, Return: done.Ended,
		})
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
	return operations
}

func main() {
	answers := map[porcupine.CheckResult]string{
		porcupine.Ok: "linearizable", porcupine.Illegal: "not linearizable", porcupine.Unknown: "unknown",
	}
	for _, path := range os.Args[1:] {
		fmt.Println(answers[porcupine.CheckOperationsTimeout(register, read(path), limit)])
	}
}
