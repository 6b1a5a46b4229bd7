// Conformance speaks tidegate's protocol for readers under test: JSON lines, a request on standard input, its reply on
// standard output. conformance/README.md has the protocol. With the argument bench it measures reads instead.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"sync"
	"time"

	"tidegate.example/reader"
)

// request has the arguments of all requests.
type request struct {
	ID          any                `json:"id"`
	Do          string             `json:"do"`
	URL         string             `json:"url"`
	Namespace   string             `json:"namespace"`
	Options     map[string]any     `json:"options"`
	Table       string             `json:"table"`
	Key         []any              `json:"key"`
	Keys        map[string][][]any `json:"keys"`
	Snapshot    string             `json:"snapshot"`
	Version     *int64             `json:"version"`
	LeaseS      *float64           `json:"lease_s"`
	TimeoutS    float64            `json:"timeout_s"`
	Types       []string           `json:"types"`
	Values      []any              `json:"values"`
	KeyGroups   int                `json:"key_groups"`
	Stride      int                `json:"stride"`
	Schema      json.RawMessage    `json:"schema"`
	Stored      string             `json:"stored"`
	DecidedAtUs int64              `json:"decided_at_us"`
	Times       int                `json:"times"`
	Threads     int                `json:"threads"`
}

// reads is what a gate and a snapshot have in common.
type reads interface {
	GetMany(context.Context, map[string][]reader.Key) (*reader.Answer, error)
	Scan(context.Context, string) (*reader.Rows, error)
	Schema(context.Context, string) (*reader.Schema, error)
}

type program struct {
	gate      *reader.Gate
	schemas   map[string]*reader.Schema // by table: for keys of the newest version, as long as they fit
	snapshots map[string]*reader.Snapshot
	taken     int
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "bench" {
		bench(os.Args[2:])
		return
	}
	of, lines, replies := &program{snapshots: map[string]*reader.Snapshot{}}, bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked request
		reply := map[string]any{}
		if err := json.Unmarshal(line, &asked); err != nil {
			reply["error"], reply["message"] = "ConfigError", err.Error()
		} else if found, err := of.do(context.Background(), &asked); err == errUnsupported {
			reply["unsupported"] = true
		} else if err != nil {
			name := reader.ErrorName(err)
			if name == "" {
				name = "ConfigError" // a request that does not fit
			}
			reply["error"], reply["message"] = name, err.Error()
		} else {
			reply["ok"] = found
		}
		reply["id"] = asked.ID
		if err := replies.Encode(reply); err != nil || asked.Do == "close" {
			return
		}
	}
}

var errUnsupported = fmt.Errorf("this program has no such request")

func (p *program) do(ctx context.Context, asked *request) (any, error) {
	switch asked.Do {
	case "connect":
		return p.connect(ctx, asked)
	case "encode_key":
		return encodeKey(asked)
	case "decode_value":
		return decodeValue(asked)
	case "close":
		if p.gate != nil {
			p.gate.Close()
		}
		return true, nil
	}
	if p.gate == nil {
		return nil, fmt.Errorf("nothing is connected")
	}
	var from reads = p.gate
	if asked.Snapshot != "" || asked.Do == "release" {
		taken := p.snapshots[asked.Snapshot]
		if taken == nil {
			return nil, fmt.Errorf("there is no snapshot %s", asked.Snapshot)
		}
		from = taken
	}
	switch asked.Do {
	case "version":
		return p.gate.Version(ctx)
	case "tables":
		if taken, isTaken := from.(*reader.Snapshot); isTaken {
			return taken.Tables(), nil
		}
		return p.gate.Tables(ctx)
	case "get":
		answer, err := p.getMany(ctx, from, map[string][][]any{asked.Table: {asked.Key}})
		if err != nil {
			return nil, err
		}
		rows := answer["rows"].(map[string][]any)
		return map[string]any{"version": answer["version"], "value": rows[asked.Table][0]}, nil
	case "get_many":
		return p.getMany(ctx, from, asked.Keys)
	case "repeat":
		return p.repeat(ctx, asked)
	case "scan":
		return scan(ctx, from, asked.Table)
	case "snapshot":
		version, lease := int64(0), time.Duration(0) // of the library: the newest, and its own time
		if asked.Version != nil {
			version = *asked.Version
		}
		if asked.LeaseS != nil {
			lease = time.Duration(*asked.LeaseS * float64(time.Second))
		}
		if asked.Version != nil && version < 1 || asked.LeaseS != nil && lease <= 0 {
			return nil, fmt.Errorf("version %d and lease %v: both are 1 or more, where they are given", version, lease)
		}
		taken, err := p.gate.Snapshot(ctx, version, lease)
		if err != nil {
			return nil, err
		}
		p.taken++
		name := fmt.Sprintf("s%d", p.taken)
		p.snapshots[name] = taken
		return map[string]any{"snapshot": name, "version": taken.Version()}, nil
	case "release":
		from.(*reader.Snapshot).Close()
		delete(p.snapshots, asked.Snapshot)
		return true, nil
	case "wait_for":
		if asked.Version == nil {
			return nil, fmt.Errorf("wait_for has a version")
		}
		return p.gate.WaitFor(ctx, *asked.Version, time.Duration(asked.TimeoutS*float64(time.Second)))
	}
	return nil, errUnsupported
}

func (p *program) connect(ctx context.Context, asked *request) (any, error) {
	options, err := optionsOf(asked.Options)
	if err != nil {
		return nil, err
	}
	if p.gate != nil {
		p.gate.Close()
		p.gate = nil
	}
	gate, err := reader.Connect(ctx, asked.URL, asked.Namespace, options)
	if err != nil {
		return nil, err
	}
	p.gate, p.snapshots, p.schemas = gate, map[string]*reader.Snapshot{}, map[string]*reader.Schema{}
	return map[string]any{"uuid": gate.UUID(), "namespace": gate.Namespace()}, nil
}

// getMany reads keys whose types are those of the last read: a read of the newest version needs no other request. If it
// is refused, they may have changed.
func (p *program) getMany(ctx context.Context, from reads, asked map[string][][]any) (map[string]any, error) {
	for isFirst := true; ; isFirst = false {
		keys, isKnown := map[string][]reader.Key{}, isFirst && from == reads(p.gate)
		for table, each := range asked {
			schema := p.schemas[table]
			if schema == nil || !isKnown {
				var err error
				if schema, err = from.Schema(ctx, table); err != nil {
					return nil, err
				}
				isKnown = false
			}
			p.schemas[table], keys[table] = schema, make([]reader.Key, len(each))
			for at, values := range each {
				keys[table][at] = keyOf(schema, values)
			}
		}
		answer, err := from.GetMany(ctx, keys)
		if reader.ErrorName(err) == "ConfigError" && isKnown {
			continue
		} else if err != nil {
			return nil, err
		}
		return map[string]any{"version": answer.Version, "rows": rowsOf(answer)}, nil
	}
}

func rowsOf(answer *reader.Answer) map[string][]any {
	rows := map[string][]any{}
	for table, each := range answer.Rows {
		rows[table] = make([]any, len(each))
		for at, row := range each {
			rows[table][at] = canonicalRow(answer.Schemas[table], row)
		}
	}
	return rows
}

// seen is an answer, and the number of times that it was given.
type seen struct {
	Version int64            `json:"version"`
	Rows    map[string][]any `json:"rows"`
	Count   int              `json:"count"`
}

// repeat reads the same keys again and again, from several goroutines, and returns the answers that differ.
func (p *program) repeat(ctx context.Context, asked *request) (any, error) {
	keys := map[string][]reader.Key{}
	for table, each := range asked.Keys {
		schema, err := p.gate.Schema(ctx, table)
		if err != nil {
			return nil, err
		}
		for _, values := range each {
			keys[table] = append(keys[table], keyOf(schema, values))
		}
	}
	var lock sync.Mutex
	var failed error
	left, answers, refused := asked.Times, []*seen{}, map[string]int{}
	note := func(answer *reader.Answer, rows map[string][]any, err error) {
		if name := reader.ErrorName(err); name != "" {
			refused[name]++
			if name == "VersionRegressedError" { // of this connection for good
				left = 0
			}
			return
		} else if err != nil {
			failed, left = err, 0
			return
		}
		for at := len(answers) - 1; at >= 0; at-- {
			if each := answers[at]; each.Version == answer.Version && reflect.DeepEqual(each.Rows, rows) {
				each.Count++
				return
			}
		}
		answers = append(answers, &seen{answer.Version, rows, 1})
	}
	var workers sync.WaitGroup
	for range max(asked.Threads, 1) {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for {
				lock.Lock()
				isOver := left <= 0
				left--
				lock.Unlock()
				if isOver {
					return
				}
				answer, err := p.gate.GetMany(ctx, keys)
				var rows map[string][]any
				if err == nil {
					rows = rowsOf(answer)
				}
				lock.Lock()
				note(answer, rows, err)
				lock.Unlock()
			}
		}()
	}
	workers.Wait()
	return map[string]any{"answers": answers, "refused": refused}, failed
}

func scan(ctx context.Context, from reads, table string) (any, error) {
	rows, err := from.Scan(ctx, table)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := [][]any{}
	for rows.Next() {
		key := make([]any, len(rows.Key()))
		for at, value := range rows.Key() {
			key[at] = canonical(value)
		}
		found = append(found, []any{key, canonicalRow(rows.Schema(), rows.Row())})
	}
	return map[string]any{"version": rows.Version(), "rows": found}, rows.Err()
}

func encodeKey(asked *request) (any, error) {
	content, err := reader.EncodeKey(asked.Types, keyOfTypes(asked.Types, asked.Values))
	if err != nil {
		return nil, err
	}
	group := reader.KeyGroup(content, asked.KeyGroups, max(asked.Stride, 1))
	return map[string]any{"bytes": hex.EncodeToString(content), "key_group": group}, nil
}

func decodeValue(asked *request) (any, error) {
	schema, err := reader.ParseSchema(asked.Schema)
	if err != nil {
		return nil, err
	}
	stored, err := hex.DecodeString(asked.Stored)
	if err != nil {
		return nil, err
	}
	row, err := schema.DecodeValue(stored, asked.DecidedAtUs)
	return canonicalRow(schema, row), err
}
