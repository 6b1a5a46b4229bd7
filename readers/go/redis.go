package reader

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisFormat is the only format of a namespace in Redis that this release reads.
const redisFormat = 2

const pauseMin, pauseMax, serversMax, atOnceMax = time.Millisecond, 100 * time.Millisecond, 20, 4

type redisStore struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // nil: one server, or Sentinels
	where   string
}

// redisCall is one command. Its error is set when no repetition mends it.
type redisCall struct {
	key, function string
	args          []any // of a function on rows without the server's id, which belongs behind the uuid
	isOnRows      bool
	server        string // the only id that may answer
	reply         any
	err           error
}

func openRedis(address string, options *Options) (store, error) {
	scheme, rest, _ := strings.Cut(address, "://")
	base, kind, _ := strings.Cut(scheme, "+")
	login, rest := "", rest
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		login, rest = rest[:at], rest[at+1:]
	}
	name, password, _ := strings.Cut(login, ":")
	hosts, path, _ := strings.Cut(rest, "/")
	where, secure := "store "+shown(address), options.TLS
	name, errName := url.PathUnescape(name)
	password, errPassword := url.PathUnescape(password)
	if errName != nil || errPassword != nil || hosts == "" || strings.ContainsAny(rest, "?#") {
		return nil, configError("%s: write %s://user:password@host:port, with / ? and # of the login as %%2F %%3F and %%23", where, scheme)
	}
	if base == "rediss" && secure == nil {
		secure = &tls.Config{MinVersion: tls.VersionTLS12}
	} else if base == "redis" && secure != nil {
		return nil, configError("%s: TLS needs a URL that begins with rediss", where)
	}
	if options.Username != "" || options.Password != "" {
		name, password = options.Username, options.Password
	}
	of := &redis.UniversalOptions{
		Addrs: strings.Split(hosts, ","), Username: name, Password: password, TLSConfig: secure, Protocol: 2,
		SentinelUsername: options.SentinelUsername, SentinelPassword: options.SentinelPassword,
		PoolSize: options.PoolSize, MaxRetries: -1, ContextTimeoutEnabled: true, DisableIndentity: true,
	}
	port := ":6379"
	if kind == "sentinel" {
		port = ":26379"
	}
	for at, host := range of.Addrs {
		if strings.LastIndex(host, ":") <= strings.LastIndex(host, "]") {
			of.Addrs[at] = host + port
		}
	}
	found := &redisStore{where: where}
	switch parts := strings.Split(strings.Trim(path, "/"), "/"); kind {
	case "cluster":
		found.cluster = redis.NewClusterClient(of.Cluster())
		found.client = found.cluster
		return found, nil
	case "sentinel":
		of.MasterName, parts = parts[0], append(parts[1:], "")
		path = parts[0]
		if of.MasterName == "" {
			return nil, configError("%s: write %s://host:port,host:port/<name of the primary>", where, scheme)
		}
	}
	if path = strings.Trim(path, "/"); path != "" {
		var err error
		if of.DB, err = strconv.Atoi(path); err != nil {
			return nil, configError("%s: the text after its servers is not the number of a database", where)
		}
	}
	if kind == "sentinel" {
		found.client = redis.NewFailoverClient(of.Failover())
	} else if found.client = redis.NewClient(of.Simple()); len(of.Addrs) > 1 {
		return nil, configError("%s: several servers are redis+cluster:// or redis+sentinel://", where)
	}
	return found, nil
}

func (r *redisStore) close() { r.client.Close() }

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
	if named[0] == "" {
		return nil, nil, nil
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
	if len(fields) < 8 {
		return nil, corrupt("%s: the pointer has %d fields", n.where, len(fields))
	}
	var errVisible, errHorizon error
	found.visible, errVisible = strconv.ParseInt(fields[0], 10, 64)
	found.horizon, errHorizon = strconv.ParseInt(fields[4], 10, 64)
	if errVisible != nil || errHorizon != nil || found.visible < 0 || found.horizon < 0 {
		return nil, corrupt("%s: the pointer is %.200q: restore the store from a copy", n.where, fields)
	}
	found.digest, found.writer, found.isLost = fields[1], fields[3], found.visible == 0 && fields[6] == ""
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
		values, _ := calls[first+at].reply.([]any)
		if len(values) != len(read.keys) {
			return found, corrupt("%s: a read of %d keys gave %d values", n.where, len(read.keys), len(values))
		}
		read.values = make([][]byte, len(values))
		for place, value := range values {
			if stored, there := value.(string); there {
				read.values[place] = []byte(stored)
			}
		}
	}
	return found, nil
}

// scan reads key groups from their first cursor to their end, each on one server.
func (n *redisNamespace) scan(ctx context.Context, of *view, groups []int) ([]map[string][]byte, error) {
	rows, cursors, servers := make([]map[string][]byte, len(groups)), make([]string, len(groups)), make([]string, len(groups))
	left, tries := make([]int, len(groups)), 0
	for at := range groups {
		left[at], rows[at], cursors[at] = at, map[string][]byte{}, "0"
	}
	for atOnce, most, size := len(groups), rowsFirst, bytesFirst; len(left) > 0; atOnce, most, size = 8, rowsNext, bytesNext {
		turn := left[:min(atOnce, len(left))]
		calls := make([]*redisCall, len(turn))
		for at, group := range turn {
			calls[at] = n.rows(of, groups[group], "scan", cursors[group], most, size)
			calls[at].server = servers[group]
		}
		n.run(ctx, calls...)
		var again []int
		for at, group := range turn {
			if errors.Is(calls[at].err, errServer) && tries < serversMax { // a cursor means nothing to another server
				rows[group], cursors[group], servers[group] = map[string][]byte{}, "0", ""
				tries++
			} else if calls[at].err != nil {
				return nil, calls[at].err
			} else {
				reply, _ := calls[at].reply.([]any)
				if len(reply) != 4 {
					return nil, corrupt("%s: a scan gave %d parts", n.where, len(reply))
				}
				servers[group], cursors[group] = fmt.Sprint(reply[0]), fmt.Sprint(reply[1])
				pairs := texts(reply[3])
				for pair := 0; pair+1 < len(pairs); pair += 2 {
					if _, isOlder := rows[group][pairs[pair]]; !isOlder {
						rows[group][pairs[pair]] = []byte(pairs[pair+1])
					}
				}
				if cursors[group] == "0" {
					continue
				}
			}
			again = append(again, group)
		}
		left = append(again, left[len(turn):]...)
	}
	return rows, nil
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
	err := n.client.XRead(ctx, &redis.XReadArgs{
		Streams: []string{n.tag + "}:versions", fmt.Sprintf("%d-%d", version, uint64(1)<<32)}, Count: 1, Block: time.Second,
	}).Err()
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// -- sending ----------------------------------------------------------------------------------------------------------

var errServer = errors.New("another server answered than the one that was named")

// run sends the calls in one pipeline, and again those that a repetition may mend, until the context's deadline.
func (n *redisNamespace) run(ctx context.Context, calls ...*redisCall) {
	left, pause, hasLooked := calls, pauseMin, map[string]bool{}
	for round := 0; len(left) > 0; round++ {
		pipe, commands := n.client.Pipeline(), make([]*redis.Cmd, len(left))
		for at, call := range left {
			commands[at] = n.command(ctx, pipe, call)
		}
		pipe.Exec(ctx) //nolint:errcheck // each command has its error
		var again []*redisCall
		var why error
		for at, call := range left {
			var isLater bool
			if call.reply, call.err = commands[at].Result(); errors.Is(call.err, redis.Nil) {
				call.err = nil
			}
			if call.err == nil {
				if call.function == "pointer" {
					n.pointerIn(call) //nolint:errcheck // its reader gets the error
				}
				continue
			}
			if call.err, isLater = n.judge(ctx, call, call.err, hasLooked); call.err == nil {
				again = append(again, call)
			} else if isLater {
				again, why = append(again, call), call.err
			}
		}
		if left = again; len(left) == 0 || why == nil && round < atOnceMax {
			continue
		}
		if n.cluster != nil {
			n.cluster.ReloadState(ctx)
		}
		select {
		case <-ctx.Done():
			for _, call := range left {
				if call.err == nil {
					call.err = unavailable("%s: its servers changed all the time", n.where)
				}
			}
			return
		case <-time.After(pause):
			pause = min(2*pause, pauseMax)
		}
	}
}

func (n *redisNamespace) command(ctx context.Context, pipe redis.Pipeliner, call *redisCall) *redis.Cmd {
	if call.function == "" {
		return pipe.Do(ctx, call.args...)
	}
	args := call.args
	if call.isOnRows {
		args = append([]any{args[0], n.serverOf(ctx, call)}, args[1:]...)
	}
	n.mu.Lock()
	function := n.library + "_" + call.function
	n.mu.Unlock()
	if call.function == "lease" || call.function == "release" {
		return pipe.FCall(ctx, function, []string{call.key}, args...)
	}
	return pipe.FCallRO(ctx, function, []string{call.key}, args...)
}

// serverOf returns the replication id that the call expects of the server it reaches: each server has its own.
func (n *redisNamespace) serverOf(ctx context.Context, call *redisCall) string {
	if call.server != "" {
		return call.server
	}
	address := n.address(ctx, call.key)
	n.mu.Lock()
	defer n.mu.Unlock()
	if id := n.ids[address]; id != "" {
		return id
	}
	for id := range n.seen.listed {
		return id
	}
	return "unknown"
}

func (n *redisNamespace) address(ctx context.Context, key string) string {
	if n.cluster != nil {
		if node, err := n.cluster.MasterForKey(ctx, key); err == nil {
			return node.Options().Addr
		}
	}
	return ""
}

// judge returns the error that a reply means, and whether the call may succeed later. Without an error the call is
// sent again at once.
func (n *redisNamespace) judge(ctx context.Context, call *redisCall, err error, hasLooked map[string]bool) (error, bool) {
	message, _, _ := strings.Cut(err.Error(), " script: ")
	message = strings.TrimSpace(strings.TrimPrefix(message, "ERR "))
	code, detail, _ := strings.Cut(message, " ")
	has := func(parts ...string) bool {
		for _, part := range parts {
			if strings.Contains(message, part) {
				return true
			}
		}
		return false
	}
	var reply redis.Error
	switch {
	case !errors.As(err, &reply):
		return unavailable("%s: no answer: %w", n.where, err), true
	case code == "TGSERVER" && call.server != "":
		return errServer, false
	case code == "TGSERVER" && detail == "replica":
		return unavailable("%s: a server is a replica now; its primary is looked for", n.where), true
	case code == "TGSERVER":
		return n.otherServer(ctx, call, detail, hasLooked), false
	case code == "TGLOST" && strings.Contains(detail, " moved from "):
		return notVerified("%s: key group %s was not compared at its new server yet: read again", n.where, detail), true
	case code == "TGLOST":
		if pointer := n.call("pointer"); !hasLooked["TGLOST"] {
			hasLooked["TGLOST"] = true // if it was dropped meanwhile, the pointer says so
			if n.run(ctx, pointer); is[*StoreLostError](pointer.err) || is[*ConfigError](pointer.err) {
				return pointer.err, false
			}
		}
		return notVerified("%s: %s was lost, or was not compared with the log: a running writer puts it back, `tidegate repair` does so now", n.where, detail), false
	case code == "TGNONE":
		return storeLost(n.where), false
	case code == "TGOTHER":
		return dropped(n.where), false
	case code == "TGEXPIRED":
		return expired("%s: that version was retired, the oldest that can be read is %s", n.where, detail), false
	case code == "TGAHEAD":
		return regressed("%s: no lease above the visible version, %s", n.where, detail), false
	case code == "TGLEASES":
		return unavailable("%s: %s leases pin versions, the most that the writer allows: close snapshots", n.where, detail), false
	case call.function == "lease" && has("OOM", "MISCONF", "NOREPLICAS", "NOPERM", "user executing the script"):
		return writesRefused("%s takes no leases: %s", n.where, message), false
	case has("NOAUTH", "WRONGPASS", "NOPERM", "invalid username-password", "user executing the script"):
		return configError("%s: the server refuses this user: %s", n.where, message), false
	case has("unction not found"):
		return n.otherLibrary(ctx), true
	case has("MOVED", "ASK ", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "MASTERDOWN", "LOADING", "BUSY", "UNBLOCKED", "non local key"):
		return unavailable("%s: a server answered: %s", n.where, message), true
	case strings.HasPrefix(code, "TG"), has("WRONGTYPE", "attempt to"):
		return corrupt("%s: %s: %s; if somebody changed it, restore the store from a copy", n.where, call.key, message), false
	}
	return configError("%s: a server answered: %s", n.where, message), false
}

// otherServer returns nil if rows of the server with this id may be read: the pointer lists it, or its process.
func (n *redisNamespace) otherServer(ctx context.Context, call *redisCall, id string, hasLooked map[string]bool) error {
	isListed := func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		version, _ := call.args[2].(int64)
		return n.seen.visible >= version && (n.seen.listed[id] || n.seen.listed[n.same[id]])
	}
	if !isListed() && !hasLooked[id] {
		hasLooked[id] = true
		pointer := n.call("pointer")
		if n.run(ctx, pointer); pointer.err != nil {
			return pointer.err
		}
		if !isListed() {
			n.survey(ctx)
		}
	}
	if !isListed() {
		return notVerified("%s: a server (%s) restarted or was promoted, and was not compared with the log yet: a running writer does so within seconds, `tidegate repair` at once", n.where, id)
	}
	address := n.address(ctx, call.key)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ids[address] = id
	return nil
}

var ofProcess = regexp.MustCompile(`(?m)^(run_id|total_net_repl_input_bytes|master_replid):(\w+)`)

// survey finds processes that have another replication id than the one that the pointer lists, and lost nothing: a
// server takes a new one when its first replica comes.
func (n *redisNamespace) survey(ctx context.Context) {
	meta, infos := n.meta("processes"), make(chan string, 1_000)
	ask := func(ctx context.Context, node *redis.Client) error {
		infos <- node.Info(ctx, "everything").Val()
		return nil
	}
	if n.run(ctx, meta); meta.err != nil {
		return
	} else if n.cluster != nil {
		n.cluster.ForEachMaster(ctx, ask)
	} else if node, isOne := n.client.(*redis.Client); isOne {
		ask(ctx, node)
	}
	close(infos)
	for info := range infos {
		found := map[string]string{}
		for _, match := range ofProcess.FindAllStringSubmatch(info, -1) {
			found[match[1]] = match[2]
		}
		process := ":" + found["run_id"] + ":" + found["total_net_repl_input_bytes"]
		for _, noted := range strings.Split(texts(meta.reply)[0], ",") {
			if id, isSame := strings.CutSuffix(noted, process); isSame && found["run_id"] != "" {
				n.mu.Lock()
				n.same[found["master_replid"]] = id
				n.mu.Unlock()
			}
		}
	}
}

// otherLibrary reads the name of the functions again, which a writer of another release changes.
func (n *redisNamespace) otherLibrary(ctx context.Context) error {
	meta := n.meta("library")
	if n.run(ctx, meta); meta.err != nil {
		return meta.err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.library = texts(meta.reply)[0]
	return unavailable("%s: a server does not have the functions of library %q: a running writer loads them, or `tidegate redis-functions`", n.where, n.library)
}

func errOf(calls ...*redisCall) error {
	for _, call := range calls {
		if call.err != nil {
			return call.err
		}
	}
	return nil
}

// texts returns the elements of a reply as text, nil as "".
func texts(reply any) []string {
	all, _ := reply.([]any)
	found := make([]string, len(all))
	for at, each := range all {
		if each != nil {
			found[at] = fmt.Sprint(each)
		}
	}
	return found
}
