package reader

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/gocql/gocql"
)

// retiring is a store whose version 1 is retired once its pointer was read, in favour of version 2.
type retiring struct {
	namespace // nil: nothing else is called
	reads     int
	asked     func(version int64) error // at each read of rows and schemas
	hasNo     bool                      // entries of version 1
	scans     int
	page      map[string][]byte // the rows of the first key group of each scan
}

const schemaOfOne = `{"key":[{"name":"k","type":"string"}],"value":[{"name":"n","type":"int"}],"value_format":"json"}`

func (r *retiring) find(context.Context, string) (*identity, *target, error) {
	return &identity{UUID: "u", Name: "flights", KeyGroups: 2 * keyGroupsAtOnce}, nil, nil
}
func (r *retiring) open(string, *identity) namespace      { return r }
func (r *retiring) close()                                {}
func (r *retiring) isOptimistic() bool                    { return false }
func (r *retiring) release(context.Context, string) error { return nil }
func (r *retiring) schemas(_ context.Context, ids []string) (map[string][]byte, error) {
	return map[string][]byte{ids[0]: []byte(schemaOfOne)}, nil
}

func (r *retiring) pointer(context.Context, int64) (*pointer, error) {
	if r.reads++; r.reads == 1 || !r.hasNo {
		return &pointer{visible: 1, digest: "1"}, nil
	}
	return &pointer{visible: 2, digest: "2", horizon: 2}, nil
}

func (r *retiring) lease(ctx context.Context, _ string, version int64, _ float64) (*pointer, error) {
	found, _ := r.pointer(ctx, version)
	return found, writesRefused("it takes no leases")
}

func (r *retiring) catalog(_ context.Context, version int64) (*entry, error) {
	if r.hasNo && version == 1 {
		return nil, nil
	}
	return entryIn("", fmt.Sprintf(`{"version":%d,"digest":"%d","tables":{"t":{"schema_id":"s","start":0}}}`, version, version))
}

func (r *retiring) read(_ context.Context, reads []*keysRead, version int64, _ *int64) (*pointer, error) {
	for _, read := range reads {
		read.values = make([][]byte, len(read.keys))
	}
	if r.asked != nil {
		return nil, r.asked(version)
	}
	return nil, nil
}

func (r *retiring) scan(_ context.Context, of *view, groups []int) ([]map[string][]byte, error) {
	r.scans++
	found := make([]map[string][]byte, len(groups))
	found[0] = r.page
	return found, r.asked(of.version)
}

func gateTo(of *retiring) *Gate {
	gate := &Gate{name: "flights", store: of, stores: []store{of}, seen: map[string]*pointer{}, options: Options{Timeout: 1e10}}
	gate.end, gate.cancel = context.WithCancel(context.Background())
	return gate
}

// TestAVersionIsRetiredBeforeItsEntryIsRead reads the newer version then.
func TestAVersionIsRetiredBeforeItsEntryIsRead(t *testing.T) {
	ctx := context.Background()
	for name, call := range map[string]func(*Gate) (any, error){
		"GetMany": func(g *Gate) (any, error) { return g.GetMany(ctx, map[string][]Key{"t": {{"k"}}}) },
		"Tables":  func(g *Gate) (any, error) { return g.Tables(ctx) },
		"Schema":  func(g *Gate) (any, error) { return g.Schema(ctx, "t") },
	} {
		found, err := call(gateTo(&retiring{hasNo: true}))
		if answer, isOne := found.(*Answer); err != nil || isOne && answer.Version != 2 {
			t.Errorf("%s: %v, %v", name, found, err)
		}
	}
}

// TestASnapshotThatHasRefused refuses for good, also where the store takes no leases.
func TestASnapshotThatHasRefused(t *testing.T) {
	ctx := context.Background()
	for name, refuse := range map[string]func(*Snapshot) error{
		"GetMany": func(s *Snapshot) error { _, err := s.Get(ctx, "t", "k"); return err },
		"Scan": func(s *Snapshot) error {
			rows, err := s.Scan(ctx, "t")
			if err != nil {
				return err
			}
			defer rows.Close()
			rows.Next()
			return rows.Err()
		},
	} {
		of := &retiring{}
		gate := gateTo(of)
		snapshot, err := gate.Snapshot(ctx, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		of.asked = func(int64) error { return expired("version 1 was retired") }
		if err := refuse(snapshot); !is[*SnapshotExpiredError](err) {
			t.Errorf("%s: %v", name, err)
		}
		of.asked = nil
		if _, err := snapshot.Get(ctx, "t", "k"); !is[*SnapshotExpiredError](err) {
			t.Errorf("after %s it reads: %v", name, err)
		}
		snapshot.Close()
		gate.Close()
	}
}

// TestAVersionIsRetiredBeforeTheFirstRowOfAScan reads the newer version then. After a row it refuses.
func TestAVersionIsRetiredBeforeTheFirstRowOfAScan(t *testing.T) {
	for name, rowsBefore := range map[string]int{"before the first row": 0, "after a row": 1} {
		of := &retiring{page: map[string][]byte{"k": []byte(`+{"n":7}`)}}
		of.asked = func(version int64) error {
			if version == 1 && of.scans > rowsBefore {
				of.hasNo = true
				return expired("version 1 was retired")
			}
			return nil
		}
		gate := gateTo(of)
		rows, err := gate.Scan(context.Background(), "t")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		count := 0
		for rows.Next() {
			count++
		}
		if rowsBefore == 0 && (rows.Version() != 2 || count != 2 || rows.Err() != nil) {
			t.Errorf("%s: %d rows of version %d, %v", name, count, rows.Version(), rows.Err())
		} else if rowsBefore == 1 && (count != 1 || !is[*SnapshotExpiredError](rows.Err())) {
			t.Errorf("%s: %d rows, %v", name, count, rows.Err())
		}
		gate.Close()
	}
}

// TestAStoreIsOpenedWhileTheGateIsClosed leaves no store open.
func TestAStoreIsOpenedWhileTheGateIsClosed(t *testing.T) {
	gate, opened := gateTo(&retiring{}), make(chan error)
	go func() { opened <- gate.enter(context.Background(), "redis://127.0.0.1:1") }()
	gate.Close()
	if err := <-opened; err == nil { // it was opened before: the race detector looks at the list
		gate.Close()
	}
	if err := gate.enter(context.Background(), "redis://127.0.0.1:1"); !is[*ConfigError](err) || len(gate.stores) > 0 {
		t.Errorf("%v, %v", gate.stores, err)
	}
}

// row is one of Cassandra's rows. As the driver does, it fills memory that it is given.
type row struct{ key string }

func (r row) Next() bool { return true }
func (r row) Err() error { return nil }
func (r row) Scan(to ...any) error {
	key, isKey := to[0].(*[]byte)
	if !isKey {
		return errors.New("the key is no bytes")
	}
	*key = append((*key)[:0], r.key...)
	return nil
}

// TestAPageThatIsReadAgain has the rows of its last try alone, and the key that it begins after.
func TestAPageThatIsReadAgain(t *testing.T) {
	var of rowsPage
	read := func(keys ...string) {
		of.begin()
		for _, key := range keys {
			if err := of.add(gocql.Scanner(row{key})); err != nil {
				t.Fatal(err)
			}
		}
	}
	read("k1", "k2")
	after := of.keys[1]
	read("k3", "k4", "k5") // and an error
	read("k3", "k4")
	if len(of.keys) != 2 || string(of.keys[0]) != "k3" || string(of.keys[1]) != "k4" || string(after) != "k2" {
		t.Errorf("%q after %q", of.keys, after)
	}
}
