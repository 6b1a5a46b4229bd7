package reader

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"slices"
	"sync"
	"time"
)

const leaseMax = 24 * time.Hour

// Snapshot is one version for all its reads, pinned by a lease until Close. A snapshot that has refused once, with a
// SnapshotExpiredError, always refuses. Goroutines may share it.
type Snapshot struct {
	at      *space
	of      *entry // nil: version 0
	version int64
	id      string
	seconds float64
	mu      sync.Mutex
	until   time.Time // of the lease, by this process's monotonic clock, never later than the store's
	revoked error
	isLent  bool // whether the store has a lease
	end     context.CancelFunc
	done    chan struct{}
}

// Snapshot takes a snapshot of a version, 0 for the newest. lease is the time that the version stays readable after
// this process dies (0: a minute); a goroutine renews it until Close. If the store gives no lease, none holds the
// version, and reads of a retired one return a SnapshotExpiredError. It returns a ConfigError for a version that is not
// visible yet. Before the first version the newest is version 0, which has no tables.
func (g *Gate) Snapshot(ctx context.Context, version int64, lease time.Duration) (snapshot *Snapshot, err error) {
	if lease == 0 {
		lease = time.Minute
	}
	if version < 0 || lease < 0 || lease > leaseMax {
		return nil, configError("a snapshot has a version of 1 or more and a lease of at most %v", leaseMax)
	}
	err = g.call(ctx, func(ctx context.Context, at *space) error {
		for try := 1; ; try++ {
			if snapshot, err = at.pin(ctx, version, lease); version > 0 || try == triesMax || !is[*SnapshotExpiredError](err) {
				return err
			}
		}
	})
	return snapshot, err
}

// pin takes a lease first, and then reads the pointer: the version must be at or above the horizon.
func (s *space) pin(ctx context.Context, version int64, lease time.Duration) (*Snapshot, error) {
	found, err := s.newestPointer(ctx)
	if err != nil {
		return nil, err
	}
	if version == 0 {
		if version = found.visible; found.isFilling() {
			return nil, s.beingFilled()
		}
	} else if err := s.checkKept(version, found); err != nil {
		return nil, err
	}
	random := make([]byte, 16)
	rand.Read(random) // it never fails
	snapshot := &Snapshot{at: s, version: version, id: hex.EncodeToString(random), seconds: lease.Seconds(), done: make(chan struct{})}
	if err := snapshot.renew(ctx); err != nil {
		return nil, err
	}
	if version == found.visible {
		snapshot.of, err = s.entryOrNone(ctx, found)
	} else {
		snapshot.of, err = s.entryAt(ctx, version)
	}
	renewing, end := context.WithCancel(s.gate.end)
	snapshot.end = end
	s.gate.mu.Lock()
	if s.gate.closed { // the lease expires by itself
		s.gate.mu.Unlock()
		end()
		return nil, configError("this gate to %s was closed", s.gate.name)
	}
	s.gate.leases.Add(1)
	s.gate.mu.Unlock()
	go snapshot.keep(renewing)
	if err != nil {
		snapshot.Close()
		return nil, err
	}
	return snapshot, nil
}

// renew takes or renews the lease, and checks that the version was not retired before.
func (s *Snapshot) renew(ctx context.Context) error {
	asked := time.Now()
	before, _ := s.at.remembered()
	found, err := s.at.lease(ctx, s.id, s.version, s.seconds)
	isLent := err == nil
	if refused, isRefused := err.(*StoreUnavailableError); isRefused && refused.refusesWrites {
		found, err = s.at.pointer(ctx, s.version)
	}
	if err == nil && before.visible > found.visible {
		err = s.at.note(before, found)
	}
	if err == nil {
		err = s.at.checkKept(s.version, found)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isLent = s.isLent || isLent
	if err == nil {
		s.until = asked.Add(time.Duration(s.seconds * float64(time.Second)))
	} else if (is[*SnapshotExpiredError](err) || is[*VersionRegressedError](err)) && s.revoked == nil {
		s.revoked = expired("the lease of this snapshot on version %d was revoked: %w", s.version, err)
	}
	return err
}

// keep renews the lease until the snapshot, or its gate, is closed, and releases it then.
func (s *Snapshot) keep(renewing context.Context) {
	defer s.at.gate.leases.Done()
	defer close(s.done)
	lease := time.Duration(s.seconds * float64(time.Second))
	for due := lease / 3; ; {
		timer := time.NewTimer(due)
		select {
		case <-renewing.Done():
			timer.Stop()
			if s.isLent {
				ctx, cancel := context.WithTimeout(context.Background(), s.at.gate.options.Timeout)
				s.at.release(ctx, s.id) // it expires by itself
				cancel()
			}
			return
		case <-timer.C:
		}
		if due = lease / 3; s.check() != nil {
			due = leaseMax // it refuses for good
			continue
		}
		ctx, cancel := context.WithTimeout(renewing, min(lease/3, s.at.gate.options.Timeout))
		if s.renew(ctx) != nil {
			due = lease / 12
		}
		cancel()
	}
}

// check refuses reads once the lease may be gone, or after the end.
func (s *Snapshot) check() error {
	if s.at.gate.end.Err() != nil {
		return s.at.gate.closedError()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.revoked == nil && !time.Now().Before(s.until) {
		s.revoked = expired("the lease of this snapshot on version %d has run out: it was not renewed for %g s; take a new snapshot", s.version, s.seconds)
	}
	return s.revoked
}

// noted returns an error of a read. After a SnapshotExpiredError the snapshot refuses for good, with or without a lease.
func (s *Snapshot) noted(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if is[*SnapshotExpiredError](err) && s.revoked == nil {
		s.revoked = err
	}
	return err
}

// Close releases the lease. It may be repeated; reads return a ConfigError from then on.
func (s *Snapshot) Close() {
	s.mu.Lock()
	s.revoked = configError("this snapshot of version %d was closed: take a new one", s.version)
	s.mu.Unlock()
	s.end()
	<-s.done
}

// Version returns the snapshot's version.
func (s *Snapshot) Version() int64 { return s.version }

// Tables lists the tables of this version.
func (s *Snapshot) Tables() []string { return s.of.names() }

// Schema returns the columns of a table at this version.
func (s *Snapshot) Schema(ctx context.Context, table string) (*Schema, error) {
	of, err := s.view(ctx, table)
	if err != nil {
		return nil, err
	}
	return of.schema, nil
}

func (s *Snapshot) view(ctx context.Context, table string) (*view, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.at.gate.options.Timeout)
	defer cancel()
	views, err := s.at.views(ctx, s.of, []string{table})
	return views[table], s.noted(err)
}

// Get reads one key at this version; nil: it is absent there.
func (s *Snapshot) Get(ctx context.Context, table string, key ...any) (Row, error) {
	answer, err := s.GetMany(ctx, map[string][]Key{table: {key}})
	if err != nil {
		return nil, err
	}
	return answer.Rows[table][0], nil
}

// GetMany reads keys of several tables at this version.
func (s *Snapshot) GetMany(ctx context.Context, keys map[string][]Key) (*Answer, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.at.gate.options.Timeout)
	defer cancel()
	answer, err := s.at.readAt(ctx, s.of, keys)
	return answer, s.noted(err)
}

// Rows are those of a scan, in no particular order: call Next until it is false, then look at Err, and Close in any
// case. A Rows belongs to one goroutine. It holds a page of rows, and the keys of the key groups that it has begun.
type Rows struct {
	ctx      context.Context
	from     *Snapshot
	ownsFrom bool
	of       *view
	next     int          // key group
	open     []*groupScan // key groups that are read now
	found    []storedRow  // the rest of the page
	key      Key
	row      Row
	isAhead  bool // Next has moved to the row, and has not returned it
	err      error
}

// Scan reads all rows of a table at this version. Each page has a time-out of its own.
func (s *Snapshot) Scan(ctx context.Context, table string) (*Rows, error) {
	of, err := s.view(ctx, table)
	if err != nil {
		return nil, err
	}
	return &Rows{ctx: ctx, from: s, of: of}, nil
}

// Scan reads all rows of a table at the newest version, which a lease holds until Close or the end. It reads up to the
// first row, at a newer version if one was retired meanwhile. Each page has a time-out of its own.
func (g *Gate) Scan(ctx context.Context, table string) (rows *Rows, err error) {
	err = again(func() error {
		snapshot, err := g.Snapshot(ctx, 0, 0)
		if err != nil {
			return err
		}
		if rows, err = snapshot.Scan(ctx, table); err != nil {
			snapshot.Close()
			return err
		}
		rows.ownsFrom = true
		rows.isAhead = rows.Next() // or it has closed the snapshot
		return rows.err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// Next moves to the next row; false: there is none, or an error.
func (r *Rows) Next() bool {
	if r.isAhead {
		r.isAhead = false
		return true
	}
	for r.err == nil && (len(r.found) > 0 || r.fetch()) {
		if len(r.found) == 0 {
			continue
		}
		stored := r.found[0]
		r.found = r.found[1:]
		if r.row, r.err = r.from.at.rowOf(r.of, stored.key, stored.value); r.row == nil {
			continue
		}
		if r.key, r.err = decodeKey(r.of.schema.keyTypes, stored.key); r.err == nil {
			return true
		}
	}
	r.Close()
	return false
}

// fetch reads the next page, which may be empty; false at the end.
func (r *Rows) fetch() bool {
	if len(r.open) == 0 {
		for ; r.next < r.of.keyGroups && len(r.open) < keyGroupsAtOnce; r.next += r.of.stride {
			r.open = append(r.open, &groupScan{group: r.next})
		}
	}
	if len(r.open) == 0 {
		return false
	}
	if r.err = r.from.check(); r.err == nil {
		ctx, cancel := context.WithTimeout(r.ctx, r.from.at.gate.options.Timeout)
		defer cancel()
		r.found, r.err = r.from.at.scan(ctx, r.of, r.open)
		r.err = r.from.noted(r.err)
		r.open = slices.DeleteFunc(r.open, func(each *groupScan) bool { return each.isDone })
	}
	return r.err == nil
}

// Version returns the scan's version.
func (r *Rows) Version() int64 { return r.of.version }

// Key returns the present row's key.
func (r *Rows) Key() Key { return r.key }

// Row returns the present row.
func (r *Rows) Row() Row { return r.row }

// Err returns the error that ended the scan; nil: all rows were read.
func (r *Rows) Err() error { return r.err }

// Close ends the scan, and releases its lease. It may be repeated.
func (r *Rows) Close() {
	r.open, r.found, r.next, r.isAhead = nil, nil, r.of.keyGroups, false
	if r.ownsFrom {
		r.ownsFrom = false
		r.from.Close()
	}
}

// removedError returns the error for a store whose pointer has a note of its removal in the place of a writer's name.
func removedError(where string, found *pointer) error {
	var note struct{ Successor string }
	if json.Unmarshal([]byte(found.writer), &note) != nil || len(note.Successor) > 1_000 || note.Successor != "" && shown(note.Successor) != note.Successor {
		return corrupt("%s: the note of its removal cannot be read: repeat `tidegate store remove`", where)
	}
	return &StoreRemovedError{failed("%s was removed from the namespace: it keeps version %d, and no later one becomes visible there; its successor is %q", []any{where, found.visible, note.Successor}), note.Successor}
}

// Schema returns the columns of the table that is scanned.
func (r *Rows) Schema() *Schema { return r.of.schema }
