package reader

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// retiring is a store whose version 1 is retired once its pointer was read, in favour of version 2.
type retiring struct {
	namespace // nil: nothing else is called
	reads     int
	asked     func(version int64) error // at each read of rows and schemas
	hasNo     bool                      // entries of version 1
	scans     int
	page      []storedRow // the rows of the first key group of each scan
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

func (r *retiring) scan(_ context.Context, of *view, open []*groupScan) ([]storedRow, error) {
	r.scans++
	for _, each := range open {
		each.isDone = true
	}
	return r.page, r.asked(of.version)
}

// gateTo returns a gate that has entered a store, and opens the others by their URLs; it fails after an error.
func gateTo(of store, others ...map[string]store) *Gate {
	gate := &Gate{name: "flights", url: "redis://first", moving: make(chan struct{}, 1), stores: map[string]store{"redis://first": of}, seen: map[string]*pointer{}, options: Options{Timeout: 1e10, FollowRedirects: []string{"next:6379"}}}
	gate.end, gate.cancel = context.WithCancel(context.Background())
	gate.open = func(_ context.Context, url string, _ *Options) (store, error) {
		if len(others) == 0 || others[0][url] == nil {
			return nil, unavailable("%s is away", url)
		}
		return others[0][url], nil
	}
	if err := gate.enter(context.Background(), "redis://first", nil); err != nil {
		panic(err)
	}
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
		of := &retiring{page: []storedRow{{[]byte("k"), []byte(`+{"n":7}`)}}}
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
	next := &moved{uuid: "u"}
	gate, entered := gateTo(&retiring{}, map[string]store{"redis://next": next}), make(chan error)
	go func() { entered <- gate.enter(context.Background(), "redis://next", nil) }()
	gate.Close()
	<-entered // before or after: the race detector looks at the stores
	if err := gate.enter(context.Background(), "redis://next", nil); !is[*ConfigError](err) || len(gate.stores) > 0 || next.opens != -2 {
		t.Errorf("%v, %v", gate.stores, err)
	}
}

// moved is a store with a namespace, and with the note of its removal if it has a successor.
type moved struct {
	retiring
	uuid, successor string
	opens           int // less the closes
	target          *target
	looked          func()
}

func (m *moved) find(_ context.Context, name string) (*identity, *target, error) {
	if m.target != nil && name == "flights" {
		return nil, m.target, nil
	} else if m.target != nil {
		return &identity{UUID: "uuid of " + name, Name: name, KeyGroups: 1}, nil, nil
	}
	return &identity{UUID: m.uuid, Name: name, KeyGroups: 1}, nil, nil
}

func (m *moved) open(name string, of *identity) namespace { return &movedSpace{moved: m, of: of} }
func (m *moved) close()                                   { m.opens-- }

type movedSpace struct {
	*moved
	of *identity
}

func (m *movedSpace) pointer(context.Context, int64) (*pointer, error) {
	if m.looked != nil {
		m.looked()
	}
	found := &pointer{visible: 1, digest: "1"}
	if m.successor != "" {
		found.writer = fmt.Sprintf(`{"successor":%q}`, m.successor)
	}
	return found, nil
}

func (m *movedSpace) awaitNewer(context.Context, int64) error { return nil }

// removedTo returns a gate to a removed store, and its opener's stores, which count the times that they are open.
func removedTo(first *moved, others map[string]*moved) *Gate {
	gate, open := gateTo(first), map[string]store{}
	for url, each := range others {
		open[url] = each
	}
	gate.open = func(_ context.Context, url string, _ *Options) (store, error) {
		if others[url] == nil {
			return nil, unavailable("%s is away", url)
		}
		others[url].opens++
		return others[url], nil
	}
	first.opens = 1
	return gate
}

// TestASuccessorWithAnotherNamespace is refused by every call, and the gate stays where it was.
func TestASuccessorWithAnotherNamespace(t *testing.T) {
	next := &moved{uuid: "v"}
	gate := removedTo(&moved{uuid: "u", successor: "redis://next"}, map[string]*moved{"redis://next": next})
	for range 3 {
		if version, err := gate.Version(context.Background()); !is[*ConfigError](err) || gate.UUID() != "u" || next.opens != 0 {
			t.Errorf("version %d of %s, %v; %d open", version, gate.UUID(), err, next.opens)
		}
	}
	gate.Close()
}

// TestASuccessorThatIsAwayAtFirst is compared with the namespace that was read, whenever it comes.
func TestASuccessorThatIsAwayAtFirst(t *testing.T) {
	others := map[string]*moved{}
	gate := removedTo(&moved{uuid: "u", successor: "redis://next"}, others)
	if _, err := gate.Version(context.Background()); !is[*StoreUnavailableError](err) || gate.UUID() != "u" || gate.Namespace() != "flights" {
		t.Errorf("%s, %v", gate.UUID(), err)
	}
	others["redis://next"] = &moved{uuid: "v"}
	if _, err := gate.Version(context.Background()); !is[*ConfigError](err) {
		t.Error(err)
	}
	others["redis://next"] = &moved{uuid: "u"}
	if version, err := gate.Version(context.Background()); version != 1 || err != nil {
		t.Errorf("%d, %v", version, err)
	}
	gate.Close()
	if left := others["redis://next"].opens; left != 0 {
		t.Errorf("%d are open", left)
	}
}

// TestNotesInACircle are refused by every call, with one client for each store.
func TestNotesInACircle(t *testing.T) {
	first, next := &moved{uuid: "u", successor: "redis://next"}, &moved{uuid: "u", successor: "redis://first"}
	gate := removedTo(first, map[string]*moved{"redis://first": first, "redis://next": next})
	for range 5 {
		if _, err := gate.WaitFor(context.Background(), 1, time.Second); !is[*StoreRemovedError](err) || !strings.Contains(err.Error(), "comes from") {
			t.Error(err)
		}
	}
	if first.opens != 1 || next.opens != 1 {
		t.Errorf("%d and %d are open", first.opens, next.opens)
	}
	if gate.Close(); first.opens != 0 || next.opens != 0 {
		t.Errorf("%d and %d are open after the close", first.opens, next.opens)
	}
}

// TestAStoreThatIsNotReached in time is closed when it comes at last.
func TestAStoreThatIsNotReached(t *testing.T) {
	next, came, closed := &moved{uuid: "u"}, make(chan struct{}), make(chan struct{})
	gate := gateTo(&moved{uuid: "u", successor: "redis://next"})
	gate.open = func(context.Context, string, *Options) (store, error) {
		<-came
		return closing{next, closed}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := gate.Version(ctx); !is[*StoreUnavailableError](err) {
		t.Error(err)
	}
	close(came)
	<-closed
	gate.Close()
}

type closing struct {
	*moved
	closed chan struct{}
}

func (c closing) close() { close(c.closed) }

// TestAWaitByAnAlias stays in the namespace in which it began.
func TestAWaitByAnAlias(t *testing.T) {
	of := &moved{target: &target{"blue", "uuid of blue", "1"}}
	gate := gateTo(of)
	looks := 0
	of.looked = func() {
		looks++
		of.target = &target{"green", "uuid of green", "2"}
	}
	_, err := gate.WaitFor(context.Background(), 2, 20*time.Millisecond)
	if !is[*WaitTimeoutError](err) || gate.Namespace() != "blue" || looks < 2 {
		t.Errorf("%s after %d looks, %v", gate.Namespace(), looks, err)
	}
	if _, err := gate.Version(context.Background()); err != nil || gate.Namespace() != "green" {
		t.Errorf("%s, %v", gate.Namespace(), err)
	}
	gate.Close()
}

// empty is a namespace before its first version.
type empty struct{ retiring }

func (e *empty) open(string, *identity) namespace                 { return e }
func (e *empty) pointer(context.Context, int64) (*pointer, error) { return &pointer{}, nil }
func (e *empty) lease(context.Context, string, int64, float64) (*pointer, error) {
	return &pointer{}, nil
}

// TestBeforeTheFirstVersion has no tables, and a snapshot of version 0 without any.
func TestBeforeTheFirstVersion(t *testing.T) {
	ctx, gate := context.Background(), gateTo(&empty{})
	defer gate.Close()
	snapshot, err := gate.Snapshot(ctx, 0, 0)
	if err != nil || snapshot.Version() != 0 || snapshot.Tables() == nil || len(snapshot.Tables()) > 0 {
		t.Fatal(err)
	}
	if tables, err := gate.Tables(ctx); err != nil || tables == nil || len(tables) > 0 {
		t.Errorf("%v, %v", tables, err)
	}
	_, errGate := gate.Get(ctx, "t", "k")
	_, errSnapshot := snapshot.Get(ctx, "t", "k")
	_, errScan := snapshot.Scan(ctx, "t")
	for _, err := range []error{errGate, errSnapshot, errScan} {
		if !is[*ConfigError](err) {
			t.Error(err)
		}
	}
}

// TestReadsAfterTheClose of a snapshot, or of its gate, are errors of the call.
func TestReadsAfterTheClose(t *testing.T) {
	ctx := context.Background()
	for name, end := range map[string]func(*Gate, *Snapshot){
		"snapshot": func(_ *Gate, s *Snapshot) { s.Close() },
		"gate":     func(g *Gate, _ *Snapshot) { g.Close() },
	} {
		gate := gateTo(&retiring{})
		snapshot, err := gate.Snapshot(ctx, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		end(gate, snapshot)
		if _, err := snapshot.Get(ctx, "t", "k"); !is[*ConfigError](err) {
			t.Errorf("%s: %v", name, err)
		}
		gate.Close()
	}
}

// TestTablesThatAreListed are all but those of due times.
func TestTablesThatAreListed(t *testing.T) {
	of, err := entryIn("", `{"version":1,"tables":{"visits":{},"_due.visits":{},"_due_at.visits":{},"_quarantine":{},"Legs":{}}}`)
	if names := fmt.Sprint(of.names()); err != nil || names != "[Legs _quarantine visits]" {
		t.Errorf("%s, %v", names, err)
	}
}

// TestKeysOfAnyIntegerType are taken if they fit.
func TestKeysOfAnyIntegerType(t *testing.T) {
	for _, each := range []struct {
		kind string
		key  any
		fits bool
	}{
		{"tinyint", uint(127), true}, {"tinyint", uint8(128), false}, {"bigint", uint64(1<<63 - 1), true}, {"bigint", uint64(1 << 63), false},
		{"int", int8(-1), true}, {"decimal(20,0)", uint64(1<<64 - 1), true}, {"decimal(19,0)", uint64(1<<64 - 1), false}, {"int", 1.0, false},
	} {
		content, err := EncodeKey([]string{each.kind}, Key{each.key})
		if each.fits && (err != nil || string(content) != fmt.Sprint(each.key)) || !each.fits && !is[*ConfigError](err) {
			t.Errorf("%+v: %s, %v", each, content, err)
		}
	}
}

// slow is a namespace of two key groups with three pages each. A page takes most of the time-out.
type slow struct {
	namespace
	pages map[int]int
}

func (s *slow) scan(ctx context.Context, _ *view, open []*groupScan) ([]storedRow, error) {
	time.Sleep(60 * time.Millisecond)
	of := open[0]
	s.pages[of.group]++
	of.isDone = s.pages[of.group] == 3
	return []storedRow{{fmt.Appendf(nil, "%d-%d", of.group, s.pages[of.group]), []byte(`+{"n":7}`)}}, ctx.Err()
}

// TestAScanThatTakesLongerThanATimeout has a time-out for each page, and one page in memory.
func TestAScanThatTakesLongerThanATimeout(t *testing.T) {
	gate := gateTo(&retiring{})
	gate.options.Timeout = 100 * time.Millisecond
	schema, err := ParseSchema([]byte(schemaOfOne))
	if err != nil {
		t.Fatal(err)
	}
	from := &Snapshot{at: &space{namespace: &slow{pages: map[int]int{}}, gate: gate}, until: time.Now().Add(time.Hour)}
	rows := &Rows{ctx: context.Background(), from: from, of: &view{table: "t", keyGroups: 2, stride: 1, schema: schema}}
	count := 0
	for ; rows.Next(); count++ {
		if len(rows.found) > 0 {
			t.Errorf("%d rows are held", len(rows.found))
		}
	}
	if count != 6 || rows.Err() != nil {
		t.Errorf("%d rows, %v", count, rows.Err())
	}
}

// TestALoginGoesOnlyToServersThatItsOwnerNamed opens no other successor.
func TestALoginGoesOnlyToServersThatItsOwnerNamed(t *testing.T) {
	for _, each := range []struct {
		successor  string
		isFollowed bool
	}{
		{"redis://next", true}, {"redis://NEXT:6379", true}, {"redis://first/1", true}, {"redis://next:6379/2", true},
		{"redis://next:6380", false}, {"redis://other", false}, {"redis://next,other", false}, {"redis://x@next", false},
		{"redis://next.other", false}, {"redis://other@next/", false}, {"redis://next@other", false}, {"redis://next?@other", false},
	} {
		opened := []string{}
		gate := removedTo(&moved{uuid: "u", successor: each.successor}, nil)
		gate.open = func(_ context.Context, url string, _ *Options) (store, error) {
			opened = append(opened, url)
			return &moved{uuid: "u"}, nil
		}
		_, err := gate.Version(context.Background())
		if (err == nil) != each.isFollowed || (len(opened) > 0) != each.isFollowed {
			t.Errorf("%s: %v, opened %v", each.successor, err, opened)
		}
	}
	for url, servers := range map[string]string{
		"redis://u:p@a,b:1/x": "a:6379,b:1", "rediss+sentinel://a/main": "a:26379", "cassandra://u:p@a,b:1/k": "a:1,b:1",
		"cassandra://a/k": "a:9042", "redis://[::1]": "[::1]:6379", "redis+cluster://[::1]:7,b": "[::1]:7,b:6379",
	} {
		if found := strings.Join(serversOf(url), ","); found != servers {
			t.Errorf("%s: %s", url, found)
		}
	}
}
