package reader

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
)

const keyGroupsAtOnce, groupsNext, rowsFirst, rowsNext, bytesFirst, bytesNext = 64, 8, 128, 1_000, 64 << 10, 1 << 20

// store is what Redis and Cassandra have in common. Its errors are those of this package.
type store interface {
	// find returns the identity and the settings of a namespace, nil if there is none, and what an alias names.
	find(ctx context.Context, name string) (*identity, *target, error)
	// open returns the handle of a namespace that find has found.
	open(name string, of *identity) namespace
	close()
}

// namespace is one namespace in a store.
type namespace interface {
	pointer(ctx context.Context, known int64) (*pointer, error)
	// catalog returns the entry of a version, nil if there is none.
	catalog(ctx context.Context, version int64) (*entry, error)
	schemas(ctx context.Context, ids []string) (map[string][]byte, error)
	// read fills in the stored values. With known, the pointer is read in the same round trip, where the store can:
	// the pointer is then returned, also beside an error of the rows.
	read(ctx context.Context, reads []*keysRead, version int64, known *int64) (*pointer, error)
	// scan reads a page of each of the first of these key groups, as many as travel together. It returns the newest value
	// of each key once, delete markers too.
	scan(ctx context.Context, of *view, open []*groupScan) ([]storedRow, error)
	// lease takes or renews a lease, and reads the pointer after it.
	lease(ctx context.Context, id string, version int64, seconds float64) (*pointer, error)
	release(ctx context.Context, id string) error
	// awaitNewer returns soon after a newer version than this one, or after about a second.
	awaitNewer(ctx context.Context, version int64) error
	// isOptimistic tells whether read can read the pointer in the same round trip.
	isOptimistic() bool
}

type identity struct {
	UUID      string         `json:"uuid"`
	Name      string         `json:"name"`
	KeyGroups int            `json:"key_groups"`
	Format    int            `json:"format"`
	library   string         // of Redis
	space     cassandraSpace // of Cassandra
}

type target struct{ namespace, uuid, revision string }

type pointer struct {
	visible, horizon       int64
	digest, writer, latest string
	listed                 map[string]bool
	isLost                 bool // it was made again, or its pointer was, and nothing is compared with the log yet
}

func (p *pointer) isFilling() bool { return p.isLost || p.visible == 0 && p.horizon > 0 }

// entry is the description of a version in the catalog.
type entry struct {
	Version     int64  `json:"version"`
	Digest      string `json:"digest"`
	DecidedAtUs int64  `json:"decided_at_us"`
	Tables      map[string]struct {
		SchemaID string `json:"schema_id"`
		Start    int64  `json:"start"`
		Stride   int    `json:"stride"`
	} `json:"tables"`
}

// view is a table at a version.
type view struct {
	table                       string
	version, start, decidedAtUs int64
	stride, keyGroups           int
	schema                      *Schema
}

// keysRead is a read of keys of one key group of a table.
type keysRead struct {
	of     *view
	group  int
	keys   [][]byte
	places []int    // of the keys among those that were asked for
	values [][]byte // as stored; nil: no row
}

// groupScan is the scan of a key group between two pages.
type groupScan struct {
	group           int
	isBegun, isDone bool
	after           []byte          // of Cassandra: the last key
	cursor, server  string          // of Redis
	seen            map[string]bool // of Redis: the keys that came, whose later values do not count
	changes         int             // of the server
}

type storedRow struct{ key, value []byte }

func identityIn(where, content string, formats ...int) (*identity, error) {
	found := &identity{Format: 1}
	if err := json.Unmarshal([]byte(content), found); err != nil || found.UUID == "" {
		return nil, corrupt("%s: its identity cannot be read: %.200q", where, content)
	}
	for _, known := range formats {
		if found.Format == known && found.KeyGroups >= 1 && found.KeyGroups <= keyGroupsMax {
			return found, nil
		}
	}
	if found.Format < formats[0] {
		return nil, configError("%s has format %d, this release reads format %d: use the release that wrote it", where, found.Format, formats[0])
	}
	return nil, configError("%s has format %d, this release reads format %d: upgrade it", where, found.Format, formats[0])
}

func entryIn(where, content string) (*entry, error) {
	found := &entry{}
	if err := json.Unmarshal([]byte(content), found); err != nil || found.Version < 1 {
		return nil, corrupt("%s: an entry of its catalog cannot be read: %.200q", where, content)
	}
	return found, nil
}

// byGroup splits the keys of a table by key group, at most some hundreds together.
func byGroup(of *view, keys []Key, atOnce int) ([]*keysRead, error) {
	var reads []*keysRead
	open := map[int]*keysRead{}
	for place, key := range keys {
		content, err := encodeKey(of.schema.keyTypes, key)
		if err != nil {
			return nil, configError("table %s: %w", of.table, err)
		}
		group := KeyGroup(content, of.keyGroups, of.stride)
		read := open[group]
		if read == nil || len(read.keys) == atOnce {
			read = &keysRead{of: of, group: group}
			open[group], reads = read, append(reads, read)
		}
		read.keys, read.places = append(read.keys, content), append(read.places, place)
	}
	return reads, nil
}

// shown returns a URL as it may be in messages: without its login.
func shown(url string) string {
	scheme, rest, found := strings.Cut(url, "://")
	if !found || strings.ContainsAny(rest, "?#") {
		return "***"
	}
	return scheme + "://" + rest[strings.LastIndex(rest, "@")+1:]
}

// serversOf returns the servers of a store's URL as host:port.
func serversOf(url string) []string {
	scheme, rest, _ := strings.Cut(url, "://")
	hosts, _, _ := strings.Cut(rest[strings.LastIndex(rest, "@")+1:], "/")
	port, servers := ":6379", strings.Split(strings.ToLower(hosts), ",")
	if strings.HasSuffix(scheme, "+sentinel") {
		port = ":26379"
	} else if scheme == "cassandra" { // its nodes listen on one port
		port = ":9042"
		for _, host := range servers {
			if at := strings.LastIndex(host, ":"); at > strings.LastIndex(host, "]") {
				port = host[at:]
			}
		}
	}
	for at, host := range servers {
		if strings.LastIndex(host, ":") <= strings.LastIndex(host, "]") {
			servers[at] = host + port
		}
	}
	return servers
}

// isSubset returns whether all servers are among the others.
func isSubset(servers, others []string) bool {
	return !slices.ContainsFunc(servers, func(server string) bool {
		return !slices.ContainsFunc(others, func(other string) bool { return strings.EqualFold(server, other) })
	})
}
