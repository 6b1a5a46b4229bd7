package reader

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gocql/gocql"
)

const cassandraFormat, scanPage, requestsAtOnce, leasesMax = 1, 500, 16, 4_000

// cassandraSpace is the key of a namespace in every table, and the consistency that overlaps with its writes.
type cassandraSpace struct {
	id     gocql.UUID
	readAt gocql.Consistency
	level  gocql.Consistency // of writes
}

type cassandraStore struct {
	session   *gocql.Session
	where, dc string
}

func openCassandra(ctx context.Context, address string, options *Options) (store, error) {
	where, rest := "store "+shown(address), strings.TrimPrefix(address, "cassandra://")
	at := strings.LastIndex(rest, "@")
	hosts, keyspace, _ := strings.Cut(rest[at+1:], "/")
	name, password, err := loginOf(rest[:max(at, 0)], options)
	if keyspace = strings.ToLower(strings.Trim(keyspace, "/")); hosts == "" || keyspace == "" || err != nil {
		return nil, configError("%s: write cassandra://user:password@host1,host2:port/keyspace", where)
	}
	cluster := gocql.NewCluster()
	for _, host := range strings.Split(hosts, ",") {
		if before, port, has := strings.Cut(host, ":"); has {
			host = before
			if cluster.Port, err = strconv.Atoi(port); err != nil {
				return nil, configError("%s: %q is no port", where, port)
			}
		}
		cluster.Hosts = append(cluster.Hosts, host)
	}
	cluster.Keyspace, cluster.ProtoVersion, cluster.Logger = keyspace, 4, log.New(io.Discard, "", 0)
	cluster.Timeout, cluster.ConnectTimeout = options.Timeout, options.Timeout
	cluster.NumConns = max(options.PoolSize, cluster.NumConns)
	if name != "" {
		cluster.Authenticator = gocql.PasswordAuthenticator{Username: name, Password: password}
	}
	if options.TLS != nil {
		cluster.SslOpts = &gocql.SslOptions{Config: options.TLS.Clone(), EnableHostVerification: !options.TLS.InsecureSkipVerify}
		cluster.SslOpts.Config.MinVersion = max(options.TLS.MinVersion, tls.VersionTLS12)
	}
	found := &cassandraStore{where: where, dc: options.LocalDC}
	if found.dc == "" { // that of the host which answers first
		first, err := cluster.CreateSession()
		if err != nil {
			return nil, found.errorOf(err)
		}
		err = first.Query("SELECT data_center FROM system.local").WithContext(ctx).Scan(&found.dc)
		first.Close()
		if err != nil {
			return nil, found.errorOf(err)
		}
	}
	// No host of another data centre coordinates: its LOCAL_QUORUM would be another one.
	cluster.HostFilter = gocql.DataCentreHostFilter(found.dc)
	cluster.PoolConfig.HostSelectionPolicy = gocql.TokenAwareHostPolicy(gocql.RoundRobinHostPolicy())
	session, err := cluster.CreateSession()
	if err != nil {
		return nil, found.errorOf(err)
	}
	found.session = session
	return found, nil
}

func (c *cassandraStore) close() { c.session.Close() }

// errorOf returns this package's error for one of the driver's.
func (c *cassandraStore) errorOf(err error) error {
	var reply gocql.RequestError
	text := err.Error()
	switch {
	case errors.Is(err, gocql.ErrSessionClosed):
		return finalConfigError("%s: this gate was closed: connect again", c.where)
	case strings.Contains(text, "Unable to perform authentication"): // a node that cannot read its users, as while it starts
		return unavailable("%s: a node could not check the login; read again: %w", c.where, err)
	case errors.As(err, &reply) && reply.Code() == gocql.ErrCodeUnauthorized, strings.Contains(text, "authentication"), strings.Contains(text, "Authentication"):
		return configError("%s: the cluster refuses this user: %w", c.where, err)
	case errors.As(err, &reply) && (reply.Code() == gocql.ErrCodeInvalid || reply.Code() == gocql.ErrCodeSyntax || reply.Code() == gocql.ErrCodeConfig),
		errors.Is(err, gocql.ErrKeyspaceDoesNotExist), strings.Contains(text, "does not exist"):
		return configError("%s: keyspace or tables do not exist; create them with `tidegate init`: %w", c.where, err)
	}
	return unavailable("%s: no answer: %w", c.where, err)
}

// each reads all rows of a statement, again after an error that may go: scan, which gets the row's scanner, may get rows
// that it had before.
func (c *cassandraStore) each(ctx context.Context, level gocql.Consistency, scan func(gocql.Scanner) error, statement string, values ...any) error {
	return c.eachFrom(ctx, level, func() {}, scan, statement, values...)
}

// eachFrom is each, with a function that is called before each try.
func (c *cassandraStore) eachFrom(ctx context.Context, level gocql.Consistency, begin func(), scan func(gocql.Scanner) error, statement string, values ...any) error {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		begin()
		rows := c.session.Query(statement, values...).WithContext(ctx).Consistency(level).Idempotent(true).Iter().Scanner()
		var err error
		for rows.Next() && err == nil {
			err = scan(rows)
		}
		if closed := rows.Err(); closed != nil {
			err = closed
		} else if err != nil {
			return corrupt("%s: a row cannot be read: %w", c.where, err)
		}
		if err == nil {
			return nil
		}
		if err = c.errorOf(err); is[*ConfigError](err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

func (c *cassandraStore) find(ctx context.Context, name string) (*identity, *target, error) {
	var space gocql.UUID
	var content, settings, state string
	err := c.each(ctx, gocql.Consistency(gocql.Serial), func(row gocql.Scanner) error {
		return row.Scan(&space, &content, &settings, &state)
	}, "SELECT space, identity, settings, state FROM tidegate_namespaces WHERE name = ?", name)
	switch {
	case err != nil || state != "here" && state != "alias":
		return nil, nil, err
	case state == "alias":
		var named struct{ Namespace, UUID string }
		if json.Unmarshal([]byte(content), &named) != nil || named.Namespace == "" || named.UUID == "" {
			return nil, nil, corrupt("%s: alias %s cannot be read: set it again with `tidegate alias set`", c.where, name)
		}
		return nil, &target{named.Namespace, named.UUID, space.String()}, nil
	}
	var written struct{ Consistency, DC string }
	levels := map[string]gocql.Consistency{"LOCAL_QUORUM": gocql.LocalQuorum, "QUORUM": gocql.Quorum, "EACH_QUORUM": gocql.EachQuorum}
	if json.Unmarshal([]byte(settings), &written) != nil || levels[written.Consistency] == 0 {
		return nil, nil, corrupt("%s: the settings of namespace %s cannot be read: %.100q", c.where, name, settings)
	} else if written.Consistency == "LOCAL_QUORUM" && written.DC != c.dc {
		return nil, nil, configError("%s: namespace %s is written at LOCAL_QUORUM in data centre %s, and this client is in %s, where a version may be incomplete", c.where, name, written.DC, c.dc)
	}
	found, err := identityIn(c.where+", namespace "+name, content, cassandraFormat)
	if err != nil {
		return nil, nil, err
	}
	found.space = cassandraSpace{space, gocql.LocalQuorum, levels[written.Consistency]}
	if written.Consistency == "QUORUM" {
		found.space.readAt = gocql.Quorum
	}
	if _, err := c.open(name, found).pointer(ctx, 0); is[*StoreLostError](err) {
		return nil, nil, nil
	}
	return found, nil, nil
}

func (c *cassandraStore) open(name string, of *identity) namespace {
	return &cassandraNamespace{cassandraStore: c, of: of, where: c.where + ", namespace " + name, leases: map[string]cassandraLease{}}
}

type cassandraLease struct{ taken, expires time.Time }

type cassandraNamespace struct {
	*cassandraStore
	of     *identity
	where  string
	mu     sync.Mutex
	leases map[string]cassandraLease
}

func (n *cassandraNamespace) isOptimistic() bool { return false }

func (n *cassandraNamespace) pointer(ctx context.Context, _ int64) (*pointer, error) {
	found, _, err := n.pointerAndTime(ctx)
	return found, err
}

// gone is the error of a namespace without a pointer: it was lost, or another one has its name by now.
func (n *cassandraNamespace) gone(ctx context.Context) error {
	var content, state string
	err := n.each(ctx, gocql.Consistency(gocql.Serial), func(row gocql.Scanner) error {
		return row.Scan(&content, &state)
	}, "SELECT identity, state FROM tidegate_namespaces WHERE name = ?", n.of.Name)
	if err != nil {
		return err // unknown: no answer proves a loss
	} else if state == "here" {
		if now, err := identityIn(n.where, content, cassandraFormat); err == nil && now.UUID != n.of.UUID {
			return dropped(n.where)
		}
	}
	return storeLost(n.where)
}

func (n *cassandraNamespace) pointerAndTime(ctx context.Context) (*pointer, time.Time, error) {
	var visible, horizon *int64
	var found pointer
	var now time.Time
	err := n.each(ctx, n.of.space.readAt, func(row gocql.Scanner) error {
		return row.Scan(&visible, &found.digest, &found.writer, &horizon, &now)
	}, "SELECT visible, digest, writer, horizon, toTimestamp(now()) FROM tidegate_pointers WHERE space = ? LIMIT 1", n.of.space.id)
	if err == nil && (visible == nil || horizon == nil) {
		return nil, now, n.gone(ctx)
	} else if err != nil {
		return nil, now, err
	}
	found.visible, found.horizon = *visible, *horizon
	return &found, now, nil
}

func (n *cassandraNamespace) catalog(ctx context.Context, version int64) (*entry, error) {
	var content string
	err := n.each(ctx, n.of.space.readAt, func(row gocql.Scanner) error { return row.Scan(&content) },
		"SELECT entry FROM tidegate_pointers WHERE space = ? AND version = ?", n.of.space.id, version)
	if err != nil || content == "" {
		return nil, err
	}
	return entryIn(n.where, content)
}

func (n *cassandraNamespace) schemas(ctx context.Context, ids []string) (map[string][]byte, error) {
	found := map[string][]byte{}
	err := n.each(ctx, n.of.space.readAt, func(row gocql.Scanner) error {
		var id, content string
		err := row.Scan(&id, &content)
		found[id] = []byte(content)
		return err
	}, "SELECT schema_id, content FROM tidegate_schemas WHERE space = ? AND schema_id IN ?", n.of.space.id, ids)
	return found, err
}

// together runs work on each of count places, some at a time, and returns the first error.
func together(count int, work func(place int) error) error {
	errs, slots, all := make([]error, count), make(chan struct{}, requestsAtOnce), sync.WaitGroup{}
	for place := range errs {
		slots <- struct{}{}
		all.Add(1)
		go func() {
			defer all.Done()
			errs[place] = work(place)
			<-slots
		}()
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// read returns rows that are right whatever was deleted meanwhile. That a row is absent is right if the version was not
// retired: the pointer is read again after it.
func (n *cassandraNamespace) read(ctx context.Context, reads []*keysRead, version int64, _ *int64) (*pointer, error) {
	err := together(len(reads), func(place int) error {
		read, at := reads[place], map[string][]byte{}
		err := n.each(ctx, n.of.space.readAt, func(row gocql.Scanner) error {
			var key, value []byte
			err := row.Scan(&key, &value)
			at[string(key)] = value
			return err
		}, "SELECT key, value FROM tidegate_rows WHERE space = ? AND tbl = ? AND kg = ? AND key IN ? AND version <= ? AND version >= ? GROUP BY key",
			n.of.space.id, read.of.table, read.group, read.keys, version, read.of.start)
		read.values = make([][]byte, len(read.keys))
		for index, key := range read.keys {
			read.values[index] = at[string(key)]
		}
		return err
	})
	for _, read := range reads {
		for _, value := range read.values {
			if err == nil && value == nil {
				return nil, n.checkAfter(ctx, version)
			}
		}
	}
	return nil, err
}

func (n *cassandraNamespace) checkAfter(ctx context.Context, version int64) error {
	found, err := n.pointer(ctx, 0)
	if err == nil && found.horizon > version {
		err = expired("%s: version %d was retired, the oldest that can be read is %d", n.where, version, found.horizon)
	} else if err == nil && found.visible < version {
		err = regressed("%s: version %d was visible, now it is %d: the store lost it, and has not been repaired yet", n.where, version, found.visible)
	}
	return err
}

// rowsPage is a page of a scan, in the order of its keys.
type rowsPage []storedRow

func (p *rowsPage) begin() { *p = nil }

// add keeps a row in memory of its own: the driver fills what it is given once more.
func (p *rowsPage) add(row gocql.Scanner) error {
	var stored storedRow
	err := row.Scan(&stored.key, &stored.value)
	*p = append(*p, stored)
	return err
}

func (n *cassandraNamespace) scan(ctx context.Context, of *view, open []*groupScan) ([]storedRow, error) {
	turn := open[:min(len(open), requestsAtOnce)]
	pages := make([]rowsPage, len(turn))
	err := together(len(turn), func(place int) error {
		statement, values := " ", []any{n.of.space.id, of.table, turn[place].group}
		if after := turn[place].after; after != nil {
			statement, values = " AND key > ? ", append(values, after)
		}
		return n.eachFrom(ctx, n.of.space.readAt, pages[place].begin, pages[place].add,
			"SELECT key, value FROM tidegate_rows WHERE space = ? AND tbl = ? AND kg = ?"+statement+"AND version <= ? AND version >= ? GROUP BY key LIMIT ? ALLOW FILTERING",
			append(values, of.version, of.start, scanPage)...)
	})
	if err == nil {
		err = n.checkAfter(ctx, of.version)
	}
	if err != nil {
		return nil, err
	}
	var rows []storedRow
	for place, page := range pages {
		rows = append(rows, page...)
		if turn[place].isDone = len(page) < scanPage; !turn[place].isDone {
			turn[place].after = page[scanPage-1].key
		}
	}
	return rows, nil
}

// checkLeases refuses one more lease than the writer counts: of more it counts none. Its reader continues without one.
func (n *cassandraNamespace) checkLeases(ctx context.Context, now time.Time) error {
	count := 0
	err := n.eachFrom(ctx, n.of.space.readAt, func() { count = 0 }, func(gocql.Scanner) error { count++; return nil },
		"SELECT lease_id FROM tidegate_leases WHERE space = ? AND expires_at > ? AND expires_at <= ? LIMIT ?", n.of.space.id, now, now.Add(leaseMax), leasesMax)
	if err == nil && count == leasesMax {
		err = writesRefused("%s: %d leases pin versions, the most that the store allows: close snapshots that are not read any more", n.where, count)
	}
	return err
}

// lease writes the lease first. Then a conditional write checks that the horizon has not passed it.
func (n *cassandraNamespace) lease(ctx context.Context, id string, version int64, seconds float64) (*pointer, error) {
	_, now, err := n.pointerAndTime(ctx)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	before, isRenewed := n.leases[id]
	n.mu.Unlock()
	if !isRenewed {
		if err := n.checkLeases(ctx, now); err != nil {
			return nil, err
		}
	}
	lease := cassandraLease{now, now.Add(time.Duration(seconds*1e3) * time.Millisecond)}
	if isRenewed {
		lease.taken = before.taken
	}
	err = n.session.Query("INSERT INTO tidegate_leases (space, expires_at, lease_id, version, taken_at) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?",
		n.of.space.id, lease.expires, id, version, lease.taken, lease.expires.UnixMicro()).WithContext(ctx).Consistency(n.of.space.level).Idempotent(true).Exec()
	var reply gocql.RequestError
	if errors.As(err, &reply) && (reply.Code() == gocql.ErrCodeUnauthorized || reply.Code() == gocql.ErrCodeInvalid) {
		return nil, writesRefused("%s takes no leases: %w", n.where, err)
	} else if err != nil {
		return nil, n.errorOf(err)
	}
	applied, err := n.session.Query("UPDATE tidegate_pointers SET leases_at = uuid() WHERE space = ? IF horizon <= ?", n.of.space.id, version).
		WithContext(ctx).Consistency(n.of.space.level).MapScanCAS(map[string]any{})
	if err != nil {
		return nil, n.errorOf(err)
	}
	if !applied {
		n.drop(ctx, id, lease) // it expires by itself
		return nil, expired("%s: version %d was retired", n.where, version)
	}
	n.mu.Lock()
	n.leases[id] = lease
	n.mu.Unlock()
	if isRenewed && !before.expires.Equal(lease.expires) {
		n.drop(ctx, id, before) // it expires by itself
	}
	return n.pointer(ctx, 0)
}

func (n *cassandraNamespace) release(ctx context.Context, id string) error {
	n.mu.Lock()
	lease, exists := n.leases[id]
	delete(n.leases, id)
	n.mu.Unlock()
	if !exists {
		return nil
	}
	return n.drop(ctx, id, lease)
}

func (n *cassandraNamespace) drop(ctx context.Context, id string, lease cassandraLease) error {
	return n.session.Query("DELETE FROM tidegate_leases USING TIMESTAMP ? WHERE space = ? AND expires_at = ? AND lease_id = ?",
		lease.expires.UnixMicro(), n.of.space.id, lease.expires, id).WithContext(ctx).Consistency(n.of.space.level).Idempotent(true).Exec()
}

func (n *cassandraNamespace) awaitNewer(context.Context, int64) error {
	return errors.New("Cassandra reports no new version")
}
