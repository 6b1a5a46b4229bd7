// Package reader reads tidegate's tables from Redis and Cassandra: whole versions only, whatever the writer does
// meanwhile.
//
// A [Gate] is a client of one namespace. Its [Gate.Get], [Gate.GetMany] and [Gate.Scan] read the version that is newest
// when they begin, and only that one. A [Snapshot] keeps a version for several reads. A gate never goes back to an older
// version. Nothing is written but the leases of snapshots and scans.
//
// Errors have a type for what they prove: [ConfigError], [StoreUnavailableError], [StoreNotVerifiedError],
// [SnapshotExpiredError], [VersionRegressedError], [CorruptError], [StoreRemovedError], [StoreLostError],
// [WaitTimeoutError]. Every call may be repeated. It ends after [Options].Timeout, or when its context does. On Redis a
// cancelled context ends a call only between two requests, since go-redis looks at deadlines alone. A connection by TLS
// may take up to 5 s longer.
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
	FollowRedirects                    []string      // not nil: if the store was removed, continue at its successor with the same login, on these servers (host:port) and those of the URL alone
}

// Gate is a client of one namespace, or of an alias. Goroutines may share it. Close it when you are done.
type Gate struct {
	name    string
	url     string // of Connect
	options Options
	open    func(ctx context.Context, url string, options *Options) (store, error)
	moving  chan struct{} // has an element while a call enters a store
	mu      sync.Mutex
	now     place
	stores  map[string]store    // by URL: to close
	seen    map[string]*pointer // by uuid: the newest, in any store
	closed  bool
	end     context.Context // when the gate is closed
	cancel  context.CancelFunc
	leases  sync.WaitGroup
}

// place is a store, and the namespace that was found there last.
type place struct {
	url   string
	store store
	space *space
	alias *target // that the space was found by; nil: no alias
}

// Answer has rows of one version, by table in the order of the keys; a nil Row is absent. Schemas are those of the tables
// at that version.
type Answer struct {
	Version int64
	Rows    map[string][]Row
	Schemas map[string]*Schema
}

// Connect opens a gate to a namespace, or to an alias, in the store at a URL: redis://, redis+sentinel://,
// redis+cluster:// (rediss...: TLS), cassandra://. It returns a ConfigError if there is no such namespace, or if it has
// a format that this release does not read.
func Connect(ctx context.Context, url, name string, options *Options) (*Gate, error) {
	gate := &Gate{name: name, url: url, open: openStore, moving: make(chan struct{}, 1), stores: map[string]store{}, seen: map[string]*pointer{}}
	if options != nil {
		gate.options = *options
	}
	if gate.options.Timeout <= 0 {
		gate.options.Timeout = 10 * time.Second
	}
	gate.end, gate.cancel = context.WithCancel(context.Background())
	ctx, cancel := context.WithTimeout(ctx, gate.options.Timeout)
	defer cancel()
	if err := gate.enter(ctx, url, nil); err != nil {
		gate.Close()
		return nil, err
	}
	return gate, nil
}

// Close releases all leases and closes all connections. It may be repeated.
func (g *Gate) Close() {
	g.mu.Lock()
	stores := g.stores
	g.closed, g.stores = true, nil
	g.mu.Unlock()
	g.cancel()
	g.leases.Wait()
	for _, each := range stores {
		each.close()
	}
}

// UUID returns that of the namespace that was read last.
func (g *Gate) UUID() string { return g.last().of.UUID }

// Namespace returns the name of the namespace that was read last, for an alias its target.
func (g *Gate) Namespace() string { return g.last().of.Name }

func (g *Gate) last() *space {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now.space
}

const schemes = "redis rediss redis+sentinel rediss+sentinel redis+cluster rediss+cluster cassandra"

func openStore(ctx context.Context, url string, options *Options) (store, error) {
	scheme, _, _ := strings.Cut(url, "://")
	if !slices.Contains(strings.Split(schemes, " "), scheme) {
		return nil, configError("store %s: its URL begins with none of %s", shown(url), schemes)
	} else if scheme == "cassandra" {
		return openCassandra(ctx, url, options)
	}
	return openRedis(url, options)
}

// openWithin opens a store until the context ends, which a driver may not see. A store that comes later is closed.
func (g *Gate) openWithin(ctx context.Context, url string) (store, error) {
	type opening struct {
		store store
		err   error
	}
	done := make(chan opening)
	go func() {
		found, err := g.open(ctx, url, &g.options)
		select {
		case done <- opening{found, err}:
		case <-ctx.Done():
			if err == nil {
				found.close()
			}
		}
	}()
	select {
	case found := <-done:
		return found.store, found.err
	case <-ctx.Done():
		return nil, unavailable("store %s was not reached in time; read again: %w", shown(url), ctx.Err())
	}
}

// enter moves the gate to the store at a URL, if the namespace there is the one that was read before; nil: any. After an
// error the gate is where it was.
func (g *Gate) enter(ctx context.Context, url string, before *space) error {
	g.mu.Lock()
	opened, isOpen := g.stores[url]
	g.mu.Unlock()
	if !isOpen {
		var err error
		if opened, err = g.openWithin(ctx, url); err != nil {
			return err
		}
	}
	next, err := g.lookUp(ctx, place{url: url, store: opened})
	if err == nil && before != nil && next.space.of.UUID != before.of.UUID {
		err = configError("%s: a removed store names it as its successor, and another namespace of that name is here: connect to the right store", next.space.where)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil && g.closed {
		err = g.closedError()
	}
	if err == nil {
		g.now, g.stores[url] = next, opened
	} else if !isOpen {
		opened.close()
	}
	return err
}

func (g *Gate) closedError() error {
	return finalConfigError("this gate to %s is closed: connect again", g.name)
}

// current returns the namespace to read: an alias is looked up at each call.
func (g *Gate) current(ctx context.Context) (*space, error) {
	g.mu.Lock()
	now, closed := g.now, g.closed
	g.mu.Unlock()
	if closed {
		return nil, g.closedError()
	} else if now.alias == nil {
		return now.space, nil
	}
	next, err := g.lookUp(ctx, now)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.now.store == now.store {
		g.now = next
	}
	return next.space, nil
}

// lookUp returns the place with the namespace that the gate's name means there now.
func (g *Gate) lookUp(ctx context.Context, at place) (place, error) {
	found, named, err := at.store.find(ctx, g.name)
	if err != nil {
		return at, err
	}
	name := g.name
	if found == nil && named != nil {
		if at.alias != nil && *at.alias == *named {
			return at, nil
		}
		name = named.namespace
		if found, _, err = at.store.find(ctx, name); err != nil {
			return at, err
		}
		if found == nil || found.UUID != named.uuid {
			return at, configError("store %s: alias %s names namespace %s (%s), which is not there: set it again with `tidegate alias set`", shown(at.url), g.name, name, named.uuid)
		}
	}
	if found == nil {
		return at, configError("store %s: there is no namespace or alias %s: check both; a query makes it at its first batch", shown(at.url), g.name)
	}
	url := shown(at.url)
	at.space = &space{namespace: at.store.open(name, found), gate: g, from: at.store, url: url, of: found, where: "store " + url + ", namespace " + name, sources: map[string]*Schema{}}
	at.alias = named
	return at, nil
}

// call runs a function in the namespace to read, and in the store's successor if it was removed and the options say so.
func (g *Gate) call(ctx context.Context, work func(context.Context, *space) error) error {
	return g.callIn(ctx, nil, work)
}

// callIn is call that begins in this namespace; nil: in the one to read.
func (g *Gate) callIn(ctx context.Context, at *space, work func(context.Context, *space) error) error {
	ctx, cancel := context.WithTimeout(ctx, g.options.Timeout)
	defer cancel()
	for passed := []string{}; ; at = nil {
		var err error
		if at == nil {
			at, err = g.current(ctx)
		}
		if err == nil {
			err = work(ctx, at)
		}
		var removed *StoreRemovedError
		if !errors.As(err, &removed) || g.options.FollowRedirects == nil || len(passed) == hopsMax {
			return err
		}
		passed = append(passed, at.url)
		if err := g.follow(ctx, at, removed, passed); err != nil {
			return err
		}
	}
}

// follow enters the successor of a removed store, unless another goroutine has. It enters none of the passed stores, by
// URL. The login is sent to no store of another scheme, and to no server that the options and the gate's URL do not name.
func (g *Gate) follow(ctx context.Context, at *space, removed *StoreRemovedError, passed []string) error {
	select {
	case g.moving <- struct{}{}:
		defer func() { <-g.moving }()
	case <-ctx.Done():
		return unavailable("%s was removed, and its successor was not reached in time; read again: %w", at.where, ctx.Err())
	}
	g.mu.Lock()
	now := g.now
	g.mu.Unlock()
	if now.store != at.from {
		return nil
	}
	scheme, after, _ := strings.Cut(now.url, "://")
	rest, isSame := strings.CutPrefix(removed.Successor, scheme+"://")
	if !isSame {
		return removed
	} else if slices.Contains(passed, removed.Successor) {
		return &StoreRemovedError{failed("%w, where this gate comes from: connect to one of the stores that `tidegate store list` shows", []any{removed}), removed.Successor}
	}
	if strings.Contains(rest, "@") || !isSubset(serversOf(removed.Successor), append(serversOf(g.url), g.options.FollowRedirects...)) {
		return &StoreRemovedError{failed("%w, whose servers are not in FollowRedirects, so the login is not sent there: if they are yours, add them, as host:port", []any{removed}), removed.Successor}
	}
	login := after[:strings.LastIndex(after, "@")+1]
	return g.enter(ctx, scheme+"://"+login+rest, at)
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

// Tables lists the tables of the newest version; none before the first.
func (g *Gate) Tables(ctx context.Context) (tables []string, err error) {
	err = g.call(ctx, func(ctx context.Context, at *space) error {
		return again(func() error {
			found, err := at.newestPointer(ctx)
			if err != nil {
				return err
			}
			of, err := at.entryOrNone(ctx, found)
			tables = of.names()
			return err
		})
	})
	return tables, err
}

// Schema returns the columns of a table at the newest version.
func (g *Gate) Schema(ctx context.Context, table string) (schema *Schema, err error) {
	err = g.call(ctx, func(ctx context.Context, at *space) error {
		return again(func() error {
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
// WaitTimeoutError, or the error that the last look had: an error that passes does not end it. By an alias it waits in the namespace that the alias names when the wait begins.
func (g *Gate) WaitFor(ctx context.Context, version int64, timeout time.Duration) (visible int64, err error) {
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var at *space // of the last look
	for pause := time.Millisecond; ; {
		err = g.callIn(ctx, at, func(ctx context.Context, now *space) error {
			if at != nil && at.of.UUID != now.of.UUID { // in a successor
				return finalConfigError("%s is read now, and the wait began in another namespace, %s: wait again", now.where, at.where)
			}
			at = now
			found, err := at.newestPointer(ctx)
			if err == nil {
				visible = found.visible
			}
			return err
		})
		if err == nil && visible >= version || isFinal(err) || ctx.Err() != nil {
			return visible, err
		}
		if err != nil { // a login that is rotated, a server that restarts: it passes
			select {
			case <-waiting.Done():
				return visible, err
			case <-time.After(pause):
			}
			pause = min(2*pause, 50*time.Millisecond)
			continue
		}
		if waiting.Err() != nil && ctx.Err() == nil {
			return visible, &WaitTimeoutError{failed("version %d of %s was not visible within %v, the visible version is %d", []any{version, at.of.Name, timeout, visible})}
		}
		if began := time.Now(); at.awaitNewer(waiting, visible) != nil || time.Since(began) < pause {
			select {
			case <-waiting.Done():
			case <-time.After(pause): // the store does not tell
			}
			pause = min(2*pause, 50*time.Millisecond)
		}
	}
}
