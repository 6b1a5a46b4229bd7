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
	if g.closed {
		opened.close()
		return g.closedError()
	}
	g.url, g.store, g.stores, g.space = url, opened, append(g.stores, opened), nil
	return nil
}

const schemes = "redis rediss redis+sentinel rediss+sentinel redis+cluster rediss+cluster cassandra"

func (g *Gate) closedError() error {
	return configError("this gate to %s is closed: connect again", g.name)
}

// current returns the namespace to read: an alias is looked up at each call.
func (g *Gate) current(ctx context.Context) (*space, error) {
	g.mu.Lock()
	from, at, alias, closed, url := g.store, g.space, g.alias, g.closed, g.url
	g.mu.Unlock()
	if closed {
		return nil, g.closedError()
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
	opened := &space{namespace: from.open(name, found), gate: g, from: from, of: found, where: "store " + shown(url) + ", namespace " + name, sources: map[string]*Schema{}}
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
		if !errors.As(err, &removed) || !g.options.FollowRedirects || hop == hopsMax {
			return err
		} else if err := g.follow(ctx, at, removed); err != nil {
			return err
		}
	}
}

// follow enters the successor of a removed store, unless another goroutine has. The login is sent to no store of another
// scheme.
func (g *Gate) follow(ctx context.Context, at *space, removed *StoreRemovedError) error {
	g.mu.Lock()
	url, isMoved := g.url, g.store != at.from
	g.mu.Unlock()
	if isMoved {
		return nil
	}
	scheme, after, _ := strings.Cut(url, "://")
	rest, isSame := strings.CutPrefix(removed.Successor, scheme+"://")
	if !isSame || shown(url) == removed.Successor {
		return removed
	}
	login := after[:strings.LastIndex(after, "@")+1]
	if err := g.enter(ctx, scheme+"://"+login+rest); err != nil {
		return err
	}
	moved, err := g.current(ctx)
	if err == nil && moved.of.UUID != at.of.UUID {
		return configError("%s: a removed store names it as its successor, and another namespace is here", moved.where)
	}
	return err
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
		return again(func() error {
			of, err := at.newestEntry(ctx)
			if err == nil {
				tables = of.names()
			}
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
