// Package reader reads tidegate's tables from Redis and Cassandra: whole versions only, whatever the writer does
// meanwhile.
//
// A [Gate] is a client of one namespace. Its [Gate.Get], [Gate.GetMany] and [Gate.Scan] read the version that is newest
// when they begin, and only that one. A [Snapshot] keeps a version for several reads. A gate never goes back to an older
// version. Nothing is written but the leases of snapshots and scans.
//
// Errors have a type for what they prove: [ConfigError], [StoreUnavailableError], [StoreNotVerifiedError],
// [SnapshotExpiredError], [VersionRegressedError], [CorruptError], [StoreRemovedError], [StoreLostError],
// [WaitTimeoutError]. Every call may be repeated. It ends after [Options].Timeout, or when its context does.
package reader

import (
	"context"
	"crypto/tls"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
)

const triesMax, hopsMax, schemasMax = 5, 4, 1_000

// Options of Connect; all have a default.
type Options struct {
	Username, Password                 string        // instead of those of the URL
	SentinelUsername, SentinelPassword string        // of Sentinels
	TLS                                *tls.Config   // for rediss:// and rediss+...://, and Cassandra; nil: the system's authorities
	Timeout                            time.Duration // of a call with all its repetitions: 10 s
	PoolSize                           int           // connections to each server: go-redis' own default
	LocalDC                            string        // Cassandra's data centre: the one that the first host is in
	FollowRedirects                    bool          // if the store was removed, continue at its successor with the same login
}

// Gate is a client of one namespace, or of an alias. Goroutines may share it. Close it when you are done.
type Gate struct {
	name    string
	options Options
	mu      sync.Mutex
	url     string
	store   store
	stores  []store // to close
	alias   *target // that the present space was found by; nil: no alias
	space   *space
	seen    map[string]*pointer // by uuid: the newest, in any store
	closed  bool
	end     context.Context // when the gate is closed
	cancel  context.CancelFunc
	leases  sync.WaitGroup
}

// Answer has rows of one version, by table in the order of the keys; a nil Row is absent.
type Answer struct {
	Version int64
	Rows    map[string][]Row
}

// space is a namespace in one store.
type space struct {
	namespace
	gate    *Gate
	of      *identity
	where   string
	mu      sync.Mutex
	entry   *entry
	sources map[string]*Schema
}

// Connect opens a gate to a namespace, or to an alias, in the store at a URL: redis://, redis+sentinel://,
// redis+cluster:// (rediss...: TLS), cassandra://. It returns a ConfigError if there is no such namespace, or if it has
// a format that this release does not read.
func Connect(ctx context.Context, url, name string, options *Options) (*Gate, error) {
	gate := &Gate{name: name, url: url, seen: map[string]*pointer{}}
	if options != nil {
		gate.options = *options
	}
	if gate.options.Timeout <= 0 {
		gate.options.Timeout = 10 * time.Second
	}
	gate.end, gate.cancel = context.WithCancel(context.Background())
	err := gate.enter(ctx, url)
	if err == nil {
		err = gate.call(ctx, func(context.Context, *space) error { return nil })
	}
	if err != nil {
		gate.Close()
		return nil, err
	}
	return gate, nil
}

// Close releases all leases and closes all connections. It may be repeated.
func (g *Gate) Close() {
	g.mu.Lock()
	isFirst := !g.closed
	g.closed = true
	g.mu.Unlock()
	g.cancel()
	g.leases.Wait()
	for _, each := range g.stores {
		if isFirst {
			each.close()
		}
	}
}

// UUID returns that of the namespace that was read last.
func (g *Gate) UUID() string { return g.last().of.UUID }

// Namespace returns the name of the namespace that was read last, for an alias its target.
func (g *Gate) Namespace() string { return g.last().of.Name }

func (g *Gate) last() *space {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.space
}

// enter opens the store at a URL.
func (g *Gate) enter(ctx context.Context, url string) error {
	open := openRedis
	if strings.HasPrefix(url, "cassandra://") {
		open = func(url string, options *Options) (store, error) { return openCassandra(ctx, url, options) }
	} else if scheme, _, _ := strings.Cut(url, "://"); !slices.Contains(strings.Split(schemes, " "), scheme) {
		return configError("store %s: its URL begins with none of %s", shown(url), schemes)
	}
	opened, err := open(url, &g.options)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.url, g.store, g.stores, g.space = url, opened, append(g.stores, opened), nil
	return nil
}

const schemes = "redis rediss redis+sentinel rediss+sentinel redis+cluster rediss+cluster cassandra"

// current returns the namespace to read: an alias is looked up at each call.
func (g *Gate) current(ctx context.Context) (*space, error) {
	g.mu.Lock()
	from, at, alias, closed, url := g.store, g.space, g.alias, g.closed, g.url
	g.mu.Unlock()
	if closed {
		return nil, configError("this gate to %s is closed: connect again", g.name)
	}
	if at != nil && alias == nil {
		return at, nil
	}
	found, named, err := from.find(ctx, g.name)
	if err != nil {
		return nil, err
	}
	name := g.name
	if found == nil && named != nil {
		if at != nil && alias != nil && *alias == *named {
			return at, nil
		}
		name = named.namespace
		if found, _, err = from.find(ctx, name); err != nil {
			return nil, err
		}
		if found == nil || found.UUID != named.uuid {
			return nil, configError("store %s: alias %s names namespace %s (%s), which is not there: set it again with `tidegate alias set`", shown(url), g.name, name, named.uuid)
		}
	}
	if found == nil {
		return nil, configError("store %s: there is no namespace or alias %s: check both; a query makes it at its first batch", shown(url), g.name)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.space != nil && g.space.of.UUID != found.UUID && named == nil && alias == nil {
		return nil, configError("store %s: another namespace of the name %s is here", shown(url), g.name)
	}
	opened := &space{namespace: from.open(name, found), gate: g, of: found, where: "store " + shown(url) + ", namespace " + name, sources: map[string]*Schema{}}
	if g.store == from {
		g.space, g.alias = opened, named
	}
	return opened, nil
}

// call runs a function in the namespace to read, and in the store's successor if it was removed and the options say so.
func (g *Gate) call(ctx context.Context, work func(context.Context, *space) error) error {
	ctx, cancel := context.WithTimeout(ctx, g.options.Timeout)
	defer cancel()
	for hop := 0; ; hop++ {
		at, err := g.current(ctx)
		if err == nil {
			err = work(ctx, at)
		}
		var removed *StoreRemovedError
		if !errors.As(err, &removed) || !g.options.FollowRedirects || removed.Successor == "" || hop == hopsMax {
			return err
		}
		scheme, rest, _ := strings.Cut(removed.Successor, "://")
		own, after, _ := strings.Cut(g.url, "://")
		if scheme != own || shown(g.url) == removed.Successor {
			return err // the login is sent to no store of another scheme
		}
		if login := strings.LastIndex(after, "@"); login >= 0 {
			rest = after[:login+1] + rest
		}
		if err := g.enter(ctx, scheme+"://"+rest); err != nil {
			return err
		}
		moved, err := g.current(ctx)
		if err != nil {
			return err
		}
		if moved.of.UUID != at.of.UUID {
			return configError("%s: a removed store names it as its successor, and another namespace is here", moved.where)
		}
	}
}

// Version returns the visible version; 0 before the first.
func (g *Gate) Version(ctx context.Context) (version int64, err error) {
	err = g.call(ctx, func(ctx context.Context, at *space) error {
		found, err := at.newestPointer(ctx)
		if err == nil {
			version = found.visible
		}
		return err
	})
	return version, err
}

// Tables lists the tables of the newest version.
func (g *Gate) Tables(ctx context.Context) (tables []string, err error) {
	err = g.call(ctx, func(ctx context.Context, at *space) error {
		of, err := at.newestEntry(ctx)
		if err == nil {
			tables = of.names()
		}
		return err
	})
	return tables, err
}

// Schema returns the columns of a table at the newest version.
func (g *Gate) Schema(ctx context.Context, table string) (schema *Schema, err error) {
	err = g.call(ctx, func(ctx context.Context, at *space) error {
		of, err := at.newestEntry(ctx)
		if err != nil {
			return err
		}
		views, err := at.views(ctx, of, []string{table})
		if err == nil {
			schema = views[table].schema
		}
		return err
	})
	return schema, err
}

// Get reads one key at the newest version; nil: it is absent there.
func (g *Gate) Get(ctx context.Context, table string, key ...any) (Row, error) {
	answer, err := g.GetMany(ctx, map[string][]Key{table: {key}})
	if err != nil {
		return nil, err
	}
	return answer.Rows[table][0], nil
}

// GetMany reads keys of several tables, all at one version, the newest. On Redis that takes one round trip, unless a
// newer version became visible since the last call.
func (g *Gate) GetMany(ctx context.Context, keys map[string][]Key) (answer *Answer, err error) {
	err = g.call(ctx, func(ctx context.Context, at *space) error {
		answer, err = at.readNewest(ctx, keys)
		return err
	})
	return answer, err
}

// WaitFor returns the visible version as soon as it is at least this one. After the time-out it returns a
// WaitTimeoutError.
func (g *Gate) WaitFor(ctx context.Context, version int64, timeout time.Duration) (visible int64, err error) {
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for pause := time.Millisecond; ; {
		if visible, err = g.Version(ctx); err != nil || visible >= version {
			return visible, err
		}
		if waiting.Err() != nil && ctx.Err() == nil {
			return visible, &WaitTimeoutError{failed("version %d of %s was not visible within %v, the visible version is %d", []any{version, g.name, timeout, visible})}
		}
		if began := time.Now(); g.last().awaitNewer(waiting, visible) != nil || time.Since(began) < pause {
			select {
			case <-waiting.Done():
			case <-time.After(pause): // the store does not tell
			}
			pause = min(2*pause, 50*time.Millisecond)
		}
	}
}

// -- one namespace ----------------------------------------------------------------------------------------------------

func (e *entry) names() []string {
	names := []string{}
	for name := range e.Tables {
		if !strings.HasPrefix(name, "_") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// remembered returns the newest pointer that this client has seen, and its entry if it is known.
func (s *space) remembered() (*pointer, *entry) {
	s.gate.mu.Lock()
	seen := s.gate.seen[s.of.UUID]
	s.gate.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if seen == nil {
		return &pointer{}, nil
	} else if s.entry != nil && s.entry.Version == seen.visible && s.entry.Digest == seen.digest {
		return seen, s.entry
	}
	return seen, nil
}

// note checks a pointer against the one that was seen before its request: a version never goes back.
func (s *space) note(before, found *pointer) error {
	switch {
	case strings.HasPrefix(found.writer, "{"):
		return removedError(s.where, found)
	case found.visible == 0 && before.visible > 0 && (found.horizon > 0 || found.isLost):
		return s.beingFilled()
	case found.visible < before.visible:
		return regressed("%s shows version %d, this client has already seen version %d: the store lost versions; restart the writer or run `tidegate recover`", s.where, found.visible, before.visible)
	case found.visible == before.visible && found.digest != before.digest && before.digest != "":
		return regressed("%s shows version %d with digest %s, this client has seen it with digest %s: the store holds another history now", s.where, found.visible, found.digest, before.digest)
	}
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	if seen := s.gate.seen[s.of.UUID]; seen == nil || found.visible > seen.visible {
		s.gate.seen[s.of.UUID] = found
	}
	return nil
}

func (s *space) beingFilled() error {
	return notVerified("%s is being rebuilt or filled: nothing can be read before its newest version is back; read again later", s.where)
}

func (s *space) newestPointer(ctx context.Context) (*pointer, error) {
	before, known := s.remembered()
	found, err := s.pointer(ctx, known.versionOr0())
	if err == nil {
		err = s.note(before, found)
	}
	return found, err
}

func (e *entry) versionOr0() int64 {
	if e == nil {
		return 0
	}
	return e.Version
}

// entryOf returns the entry of the visible version, which came with the pointer unless it was known.
func (s *space) entryOf(ctx context.Context, found *pointer) (*entry, error) {
	if found.visible == 0 {
		if found.horizon > 0 || found.isLost {
			return nil, s.beingFilled()
		}
		return nil, configError("namespace %s has no version yet: wait for its first batch", s.of.Name)
	}
	s.mu.Lock()
	of := s.entry
	s.mu.Unlock()
	if of != nil && of.Version == found.visible && of.Digest == found.digest {
		return of, nil
	}
	of = nil
	if found.latest != "" {
		latest, err := entryIn(s.where, found.latest)
		if err != nil {
			return nil, err
		}
		if latest.Version == found.visible {
			of = latest
		}
	}
	if of == nil {
		var err error
		if of, err = s.entryAt(ctx, found.visible); err != nil {
			return nil, err
		}
	}
	if of.Digest != found.digest {
		return nil, corrupt("%s: version %d has digest %s in the pointer, %s in the catalog: restore the store from a copy", s.where, of.Version, found.digest, of.Digest)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entry == nil || s.entry.Version < of.Version || s.entry.Version == of.Version {
		s.entry = of
	}
	return of, nil
}

// entryAt reads the entry of a version that was visible.
func (s *space) entryAt(ctx context.Context, version int64) (*entry, error) {
	for look := 0; look < 2; look++ {
		if of, err := s.catalog(ctx, version); err != nil || of != nil && of.Version == version {
			return of, err
		}
		found, err := s.newestPointer(ctx)
		if err != nil {
			return nil, err
		} else if err := s.checkKept(version, found); err != nil {
			return nil, err
		}
	}
	return nil, corrupt("%s: version %d is visible and has no entry in the catalog: `tidegate repair` puts it back", s.where, version)
}

// checkKept refuses a version that was retired, or that is not visible: it may be half applied.
func (s *space) checkKept(version int64, found *pointer) error {
	if version < found.horizon {
		return expired("%s: version %d was retired, the oldest that can be read is %d", s.where, version, found.horizon)
	}
	if version > found.visible {
		return configError("version %d of namespace %s is not visible yet, the visible version is %d", version, s.of.Name, found.visible)
	}
	return nil
}

func (s *space) newestEntry(ctx context.Context) (*entry, error) {
	found, err := s.newestPointer(ctx)
	if err != nil {
		return nil, err
	}
	return s.entryOf(ctx, found)
}

// views returns tables at the entry's version, with their schemas.
func (s *space) views(ctx context.Context, of *entry, tables []string) (map[string]*view, error) {
	views, missing := map[string]*view{}, []string{}
	s.mu.Lock()
	for _, table := range tables {
		at, exists := of.Tables[table]
		if !exists {
			s.mu.Unlock()
			return nil, configError("there is no table %q at version %d of namespace %s; the tables there are: %s", table, of.Version, s.of.Name, strings.Join(of.names(), ", "))
		}
		views[table] = &view{table, of.Version, at.Start, of.DecidedAtUs, max(at.Stride, 1), s.of.KeyGroups, s.sources[at.SchemaID]}
		if views[table].schema == nil {
			missing = append(missing, at.SchemaID)
		}
	}
	s.mu.Unlock()
	if len(missing) == 0 {
		return views, nil
	}
	found, err := s.schemas(ctx, missing)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sources) > schemasMax {
		s.sources = map[string]*Schema{}
	}
	for table, at := range views {
		id := of.Tables[table].SchemaID
		content, exists := found[id]
		if at.schema != nil {
			continue
		} else if !exists {
			return nil, expired("%s: version %d has lost the schema %s of table %s: it was retired", s.where, of.Version, id, table)
		}
		schema, err := ParseSchema(content)
		if is[*ConfigError](err) {
			return nil, configError("%s, table %s, schema %s: %w", s.where, table, id, err)
		} else if err != nil {
			return nil, corrupt("%s, table %s, schema %s: %w", s.where, table, id, err)
		}
		s.sources[id], at.schema = schema, schema
	}
	return views, nil
}

// readNewest reads keys at the newest version: first at the version seen last, together with the pointer. It reads them
// again if the pointer names a newer version, or if the version was retired meanwhile.
func (s *space) readNewest(ctx context.Context, keys map[string][]Key) (*Answer, error) {
	before, of := s.remembered()
	if of != nil && s.isOptimistic() {
		if reads, err := s.prepare(ctx, of, keys); err == nil {
			found, errRows := s.read(ctx, reads, of.Version, &of.Version)
			if found == nil {
				return nil, errRows
			}
			if err := s.note(before, found); err != nil {
				return nil, err
			}
			newest, err := s.entryOf(ctx, found)
			if err != nil {
				return nil, err
			}
			isNewest := newest.Version == of.Version && newest.Digest == of.Digest
			if isNewest && errRows == nil {
				return s.answer(of, reads, keys)
			} else if isNewest && !is[*SnapshotExpiredError](errRows) {
				return nil, errRows
			}
			of = newest
		} else {
			of = nil // at the newest version it may be none
		}
	} else {
		of = nil
	}
	for try := 1; ; try++ {
		var err error
		if of == nil {
			if of, err = s.newestEntry(ctx); err != nil {
				return nil, err
			}
		}
		answer, err := s.readAt(ctx, of, keys)
		if !is[*SnapshotExpiredError](err) || try == triesMax {
			return answer, err
		}
		of = nil // retired meanwhile: the pointer names a newer version
	}
}

func (s *space) readAt(ctx context.Context, of *entry, keys map[string][]Key) (*Answer, error) {
	reads, err := s.prepare(ctx, of, keys)
	if err == nil {
		_, err = s.read(ctx, reads, of.Version, nil)
	}
	if err != nil {
		return nil, err
	}
	return s.answer(of, reads, keys)
}

func (s *space) prepare(ctx context.Context, of *entry, keys map[string][]Key) ([]*keysRead, error) {
	var tables []string
	for table := range keys {
		tables = append(tables, table)
	}
	views, err := s.views(ctx, of, tables)
	if err != nil {
		return nil, err
	}
	var all []*keysRead
	for table, each := range keys {
		reads, err := byGroup(views[table], each, keysAtOnce)
		if err != nil {
			return nil, err
		}
		all = append(all, reads...)
	}
	return all, nil
}

const keysAtOnce = 100

func (s *space) answer(of *entry, reads []*keysRead, keys map[string][]Key) (*Answer, error) {
	answer := &Answer{of.Version, make(map[string][]Row, len(keys))}
	for table, each := range keys {
		answer.Rows[table] = make([]Row, len(each))
	}
	for _, read := range reads {
		for at, stored := range read.values {
			row, err := s.rowOf(read.of, read.keys[at], stored)
			if err != nil {
				return nil, err
			}
			answer.Rows[read.of.table][read.places[at]] = row
		}
	}
	return answer, nil
}

func (s *space) rowOf(of *view, key, stored []byte) (Row, error) {
	if stored == nil {
		return nil, nil
	}
	row, err := of.schema.DecodeValue(stored, of.decidedAtUs)
	if err != nil {
		return nil, corrupt("%s, table %s, key %.60q: %w", s.where, of.table, key, err)
	}
	return row, nil
}
