package reader

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisFormat is the only format of a namespace in Redis that this release reads.
const redisFormat = 2

const pauseMin, pauseMax, serversMax, atOnceMax = time.Millisecond, 100 * time.Millisecond, 20, 4

// ageMax is the age at which a connection is not used again: its name may lead to another server by now, while the old
// one still answers. leftFor is the time for which the connections of a server that was left stay open, for the calls
// that wait there.
const ageMax, leftFor = 15 * time.Second, 60 * time.Second

type redisStore struct {
	cluster *redis.ClusterClient // nil: one server, or Sentinels
	words   *lastWords           // nil: of a test
	where   string
	make    func() redis.UniversalClient // nil: of a Cluster, whose client knows servers by their addresses
	current struct {
		sync.Mutex
		client   redis.UniversalClient
		left     []redis.UniversalClient
		isClosed bool
	}
}

func newRedisStore(client redis.UniversalClient, where string, words *lastWords, make func() redis.UniversalClient) *redisStore {
	made := &redisStore{where: where, words: words, make: make}
	made.cluster, _ = client.(*redis.ClusterClient)
	made.current.client = client
	return made
}

func (r *redisStore) client() redis.UniversalClient {
	r.current.Lock()
	defer r.current.Unlock()
	return r.current.client
}

// leave makes new connections from now on, unless that was done since this client was taken: its server said that
// another one has taken over, and the name may lead there by now.
func (r *redisStore) leave(client redis.UniversalClient) {
	r.current.Lock()
	defer r.current.Unlock()
	if r.make == nil || r.current.client != client || r.current.isClosed {
		return
	}
	r.current.client, r.current.left = r.make(), append(r.current.left, client)
	time.AfterFunc(leftFor, func() {
		r.current.Lock()
		defer r.current.Unlock()
		client.Close()
		r.current.left = slices.DeleteFunc(r.current.left, func(each redis.UniversalClient) bool { return each == client })
	})
}

func openRedis(address string, options *Options) (store, error) {
	where := "store " + shown(address)
	scheme, rest, _ := strings.Cut(address, "://")
	base, kind, _ := strings.Cut(scheme, "+")
	at := strings.LastIndex(rest, "@")
	name, password, errLogin := loginOf(rest[:max(at, 0)], options)
	hosts, path, _ := strings.Cut(rest[at+1:], "/")
	if errLogin != nil || hosts == "" || strings.ContainsAny(rest, "?#") {
		return nil, configError("%s: write %s://user:password@host:port, with / ? and # of the login as %%2F %%3F and %%23", where, scheme)
	}
	of := &redis.UniversalOptions{
		Addrs: strings.Split(hosts, ","), Username: name, Password: password, TLSConfig: options.TLS, Protocol: 2,
		SentinelUsername: options.SentinelUsername, SentinelPassword: options.SentinelPassword,
		PoolSize: options.PoolSize, MaxRetries: -1, ConnMaxLifetime: ageMax, ContextTimeoutEnabled: true, DisableIndentity: true,
	}
	if base == "rediss" && of.TLSConfig == nil {
		of.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	} else if base == "redis" && of.TLSConfig != nil {
		return nil, configError("%s: TLS needs a URL that begins with rediss", where)
	}
	words := &lastWords{said: map[string]string{}}
	of.Dialer = words.dialer(of.TLSConfig)
	port, parts := ":6379", strings.Split(strings.Trim(path, "/"), "/")
	if kind == "sentinel" {
		port, of.MasterName, parts = ":26379", parts[0], append(parts[1:], "")
	}
	for at, host := range of.Addrs {
		if strings.LastIndex(host, ":") <= strings.LastIndex(host, "]") {
			of.Addrs[at] = host + port
		}
	}
	if number, err := strconv.Atoi(parts[0]); err == nil && kind != "cluster" {
		of.DB = number
	} else if parts[0] != "" {
		return nil, configError("%s: the text after its servers is not the number of a database", where)
	}
	switch {
	case kind == "cluster":
		cluster := of.Cluster()
		cluster.ClusterSlots = slotsBy(of)
		return newRedisStore(redis.NewClusterClient(cluster), where, words, nil), nil
	case kind == "sentinel" && of.MasterName != "":
		make := func() redis.UniversalClient { return redis.NewFailoverClient(of.Failover()) }
		return newRedisStore(make(), where, words, make), nil
	case kind == "" && len(of.Addrs) == 1:
		make := func() redis.UniversalClient { return redis.NewClient(of.Simple()) }
		return newRedisStore(make(), where, words, make), nil
	}
	return nil, configError("%s: write redis://host:port, redis+cluster://host:port,host:port or redis+sentinel://host:port,host:port/<name of the primary>", where)
}

// loginOf returns the user and the password of the options, or of a URL's login.
func loginOf(login string, options *Options) (string, string, error) {
	if options.Username != "" || options.Password != "" {
		return options.Username, options.Password, nil
	}
	name, password, _ := strings.Cut(login, ":")
	name, errName := url.PathUnescape(name)
	password, errPassword := url.PathUnescape(password)
	return name, password, errors.Join(errName, errPassword)
}

func (r *redisStore) close() {
	r.current.Lock()
	defer r.current.Unlock()
	r.current.isClosed = true
	for _, each := range append(r.current.left, r.current.client) {
		each.Close()
	}
}

func (r *redisStore) open(name string, of *identity) namespace {
	return &redisNamespace{
		redisStore: r, tag: "tg:{" + name, of: of, library: of.library, ids: map[string]string{}, same: map[string]string{},
		where: r.where + ", namespace " + name, seen: &pointer{},
	}
}

func (r *redisStore) find(ctx context.Context, name string) (*identity, *target, error) {
	of := r.open(name, &identity{}).(*redisNamespace)
	meta, alias := of.meta("identity", "ready", "library"), &redisCall{key: of.tag + "}:alias"}
	alias.args = []any{"HMGET", alias.key, "namespace", "uuid", "revision"}
	of.run(ctx, meta, alias)
	if err := errors.Join(meta.err, alias.err); err != nil {
		return nil, nil, errOf(meta, alias)
	}
	fields, named := texts(meta.reply), texts(alias.reply)
	if fields[0] != "" && fields[1] != "" {
		found, err := identityIn(of.where, fields[0], redisFormat)
		if found != nil {
			found.library = fields[2]
		}
		return found, nil, err
	}
	if named[0] == "" && named[1] == "" {
		return nil, nil, nil
	} else if named[0] == "" || named[1] == "" {
		return nil, nil, corrupt("%s: the alias has no namespace or no uuid: set it again", of.where)
	}
	return nil, &target{named[0], named[1], named[2]}, nil
}

type redisNamespace struct {
	*redisStore
	tag, where string
	of         *identity
	mu         sync.Mutex
	library    string
	ids        map[string]string // by address of a server: its replication id
	same       map[string]string // by replication id: the listed one that the same process had before
	seen       *pointer          // the newest, with the servers that it lists
}

func (n *redisNamespace) isOptimistic() bool { return true }

func (n *redisNamespace) meta(fields ...any) *redisCall {
	key := n.tag + "}:meta"
	return &redisCall{key: key, args: append([]any{"HMGET", key}, fields...)}
}

func (n *redisNamespace) call(function string, args ...any) *redisCall {
	return &redisCall{key: n.tag + "}:meta", function: function, args: append([]any{n.of.UUID}, args...)}
}

func (n *redisNamespace) rows(of *view, group int, function string, args ...any) *redisCall {
	head := []any{n.of.UUID, of.table, of.version, of.start}
	return &redisCall{key: fmt.Sprintf("%s/%d}:h", n.tag, group), function: function, isOnRows: true, args: append(head, args...)}
}

func (n *redisNamespace) pointer(ctx context.Context, known int64) (*pointer, error) {
	call := n.call("pointer", known)
	n.run(ctx, call)
	return n.pointerIn(call)
}

func (n *redisNamespace) pointerIn(call *redisCall) (*pointer, error) {
	if call.err != nil {
		return nil, call.err
	}
	fields, found := texts(call.reply), &pointer{listed: map[string]bool{}}
	for _, at := range []int{1, 3, 6} {
		if call.reply.([]any)[at] == nil {
			return nil, corrupt("%s: the pointer lacks field %d: restore the store from a copy", n.where, at+1)
		}
	}
	var errVisible, errHorizon error
	found.visible, errVisible = strconv.ParseInt(fields[0], 10, 64)
	found.horizon, errHorizon = strconv.ParseInt(fields[4], 10, 64)
	if errVisible != nil || errHorizon != nil || found.visible < 0 || found.horizon < 0 {
		return nil, corrupt("%s: the pointer is %.200q: restore the store from a copy", n.where, fields)
	}
	found.digest, found.writer, found.isLost = fields[1], fields[3], fields[6] == ""
	for _, id := range strings.Split(fields[6], ",") {
		found.listed[id] = id != ""
	}
	if len(fields) > 8 {
		_, found.latest, _ = strings.Cut(fields[8], " ")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen = found
	return found, nil
}

func (n *redisNamespace) catalog(ctx context.Context, version int64) (*entry, error) {
	call := n.call("catalog", version, version)
	if n.run(ctx, call); call.err != nil {
		return nil, call.err
	}
	for _, stored := range texts(call.reply) {
		_, content, _ := strings.Cut(stored, " ")
		return entryIn(n.where, content)
	}
	return nil, nil
}

func (n *redisNamespace) schemas(ctx context.Context, ids []string) (map[string][]byte, error) {
	call, found := n.call("schemas"), map[string][]byte{}
	for _, id := range ids {
		call.args = append(call.args, id)
	}
	if n.run(ctx, call); call.err != nil {
		return nil, call.err
	}
	pairs := texts(call.reply)
	for at := 0; at+1 < len(pairs); at += 2 {
		found[pairs[at]] = []byte(pairs[at+1])
	}
	return found, nil
}

func (n *redisNamespace) read(ctx context.Context, reads []*keysRead, version int64, known *int64) (*pointer, error) {
	var calls []*redisCall
	if known != nil {
		calls = append(calls, n.call("pointer", *known))
	}
	first := len(calls)
	for _, read := range reads {
		call := n.rows(read.of, read.group, "read")
		for _, key := range read.keys {
			call.args = append(call.args, key)
		}
		calls = append(calls, call)
	}
	n.run(ctx, calls...)
	var found *pointer
	if known != nil {
		var err error
		if found, err = n.pointerIn(calls[0]); err != nil {
			return nil, err
		}
	}
	if err := errOf(calls[first:]...); err != nil {
		return found, err
	}
	for at, read := range reads {
		values := calls[first+at].reply.([]any)
		read.values = make([][]byte, len(values))
		for place, value := range values {
			if stored, there := value.(string); there {
				read.values[place] = []byte(stored)
			}
		}
	}
	return found, nil
}

// scan reads the first page of all key groups together, later ones of a few. One server has the cursor of a key group.
func (n *redisNamespace) scan(ctx context.Context, of *view, open []*groupScan) ([]storedRow, error) {
	turn, most, size := open, rowsFirst, bytesFirst
	if open[0].isBegun {
		turn, most, size = open[:min(len(open), groupsNext)], rowsNext, bytesNext
	}
	calls := make([]*redisCall, len(turn))
	for at, each := range turn {
		if each.cursor == "" {
			each.cursor, each.seen = "0", map[string]bool{}
		}
		calls[at] = n.rows(of, each.group, "scan", each.cursor, most, size)
		calls[at].server = each.server
	}
	n.run(ctx, calls...)
	var page []storedRow
	for at, each := range turn {
		each.isBegun = true
		reply, _ := calls[at].reply.([]any)
		if errors.Is(calls[at].err, errServer) { // a cursor means nothing to another server; the rows that came are right
			if each.changes++; each.changes > serversMax {
				return nil, unavailable("%s: its servers changed all the time", n.where)
			}
			each.cursor, each.server = "0", ""
			continue
		} else if calls[at].err != nil {
			return nil, calls[at].err
		}
		each.server, each.cursor = fmt.Sprint(reply[0]), fmt.Sprint(reply[1])
		pairs := texts(reply[3])
		for pair := 0; pair+1 < len(pairs); pair += 2 {
			if key := pairs[pair]; !each.seen[key] {
				each.seen[key] = true
				page = append(page, storedRow{[]byte(key), []byte(pairs[pair+1])})
			}
		}
		each.isDone = each.cursor == "0"
	}
	return page, nil
}

func (n *redisNamespace) lease(ctx context.Context, id string, version int64, seconds float64) (*pointer, error) {
	lease, after := n.call("lease", id, version, int64(seconds*1e6)), n.call("pointer", version)
	n.run(ctx, lease, after)
	found, err := n.pointerIn(after)
	if lease.err != nil {
		return found, lease.err
	}
	return found, err
}

func (n *redisNamespace) release(ctx context.Context, id string) error {
	call := n.call("release", id)
	n.run(ctx, call)
	return call.err
}

func (n *redisNamespace) awaitNewer(ctx context.Context, version int64) error {
	client := n.client()
	err := client.XRead(ctx, &redis.XReadArgs{
		Streams: []string{n.tag + "}:versions", fmt.Sprintf("%d-%d", version, uint64(1)<<32)}, Count: 1, Block: time.Second,
	}).Err()
	if errors.Is(err, redis.Nil) {
		return nil
	} else if err != nil && isElsewhere(err.Error()) {
		n.leave(client)
	}
	return err
}

var errUnnamed = errors.New("set cluster-announce-hostname on each server, or cluster-preferred-endpoint-type ip: the Cluster" +
	" gives \"?\" for a host name")

// slotsBy returns a function that reads the slots of a Cluster from the first server of the URL that answers, or of the
// servers that it named before. A server that does not announce its endpoint (nil, or "") has the host that was asked.
func slotsBy(of *redis.UniversalOptions) func(context.Context) ([]redis.ClusterSlot, error) {
	var mu sync.Mutex
	var known []string
	return func(ctx context.Context) ([]redis.ClusterSlot, error) {
		var failed error // a refusal only if all servers refuse
		mu.Lock()
		asked := append(append([]string{}, known...), of.Addrs...)
		mu.Unlock()
		for _, address := range asked {
			slots, err := slotsOf(ctx, of, address)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				known = known[:0]
				for _, slot := range slots {
					known = append(known, slot.Nodes[0].Addr)
				}
				return slots, nil
			}
			if failed == nil || isRefusal(failed.Error()) {
				failed = err
			}
		}
		return nil, failed
	}
}

func slotsOf(ctx context.Context, of *redis.UniversalOptions, address string) ([]redis.ClusterSlot, error) {
	options := of.Simple()
	options.Addr, options.PoolSize = address, 1
	client := redis.NewClient(options)
	defer client.Close()
	ranges, err := client.Do(ctx, "CLUSTER", "SLOTS").Slice()
	if err != nil {
		return nil, err
	}
	host, _, _ := net.SplitHostPort(address)
	var slots []redis.ClusterSlot
	for _, each := range ranges {
		parts, _ := each.([]any)
		if len(parts) < 3 {
			return nil, fmt.Errorf("%s: a range of slots has %d parts", address, len(parts))
		}
		first, _ := parts[0].(int64)
		last, _ := parts[1].(int64)
		primary, _ := parts[2].([]any)
		if len(primary) < 2 {
			return nil, fmt.Errorf("%s: the primary of a range of slots has %d parts", address, len(primary))
		}
		at, _ := primary[0].(string)
		port, _ := primary[1].(int64)
		if at == "?" {
			return nil, fmt.Errorf("%s: %w", address, errUnnamed)
		} else if at == "" {
			at = host
		}
		node := redis.ClusterNode{Addr: net.JoinHostPort(at, strconv.FormatInt(port, 10))}
		slots = append(slots, redis.ClusterSlot{Start: int(first), End: int(last), Nodes: []redis.ClusterNode{node}})
	}
	return slots, nil
}
