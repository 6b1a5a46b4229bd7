package reader

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisCall is one command. Its error is set when no repetition mends it.
type redisCall struct {
	key, function string
	args          []any // of a function on rows without the server's id, which belongs behind the uuid
	isOnRows      bool
	server        string // the only id that may answer
	reply         any
	err           error
}

// An error reply that is none of these proves nothing: the call is sent again until its deadline.
var (
	// elsewhere are the first words of a server that another one has replaced.
	elsewhere = " READONLY MASTERDOWN UNBLOCKED "
	// refusing are parts of replies about the login.
	refusing = []string{"NOAUTH", "WRONGPASS", "NOPERM", "DENIED", "unauthenticated", "invalid username-password", "invalid password",
		"no password is set", "without any password configured", "user executing the script"}
	// mistakes are parts of replies of a server that never takes the call.
	mistakes = []string{"CROSSSLOT", "NOPROTO", "wrong number of arguments", "unknown command", "unknown subcommand", "syntax error",
		"rotocol error", "DB index", "compiling", "support disabled", "not allowed in cluster mode"}
	// damages are parts of replies about a value that is not what a release writes.
	damages = []string{"WRONGTYPE", "attempt to ", "bad argument", "not an integer"}
)

// isElsewhere returns whether a server says that it is not the primary.
func isElsewhere(message string) bool {
	word, _, _ := strings.Cut(message, " ")
	return strings.Contains(elsewhere, " "+word+" ") || strings.HasPrefix(message, "TGSERVER replica")
}

// isRefusal returns whether an error reply is the same later.
func isRefusal(message string) bool {
	isIn := func(part string) bool { return strings.Contains(message, part) }
	return slices.ContainsFunc(refusing, isIn) || slices.ContainsFunc(mistakes, isIn)
}

// fits returns whether a reply has the form of replies to this call. One of another form is no answer: somebody else's reply
// has shifted the connection, or another program answers.
func (c *redisCall) fits() bool {
	if c.err != nil {
		code, detail, _ := strings.Cut(c.err.Error(), " ")
		return code != "TGSERVER" || strings.HasPrefix(detail, "replica") || c.isOnRows && detail != ""
	}
	all, isList := c.reply.([]any)
	switch c.function {
	case "lease", "release":
		_, isNumber := c.reply.(int64)
		return isNumber
	case "": // HMGET
		return len(all) == len(c.args)-2 && areTexts(all, true)
	case "pointer": // with an entry, or without
		return (len(all) == 8 || len(all) == 9) && areTexts(all, true)
	case "read":
		return len(all) == len(c.args)-4 && areTexts(all, true)
	case "scan":
		if len(all) != 4 || !areTexts(all[:2], false) {
			return false
		}
		_, isNumber := all[2].(int64)
		rows, isList := all[3].([]any)
		return isNumber && isList && len(rows)%2 == 0 && areTexts(rows, false)
	}
	return isList && areTexts(all, false) && (c.function != "schemas" || len(all)%2 == 0)
}

func areTexts(all []any, orNil bool) bool {
	return !slices.ContainsFunc(all, func(each any) bool {
		_, isText := each.(string)
		return !isText && (each != nil || !orNil)
	})
}

var errServer = errors.New("another server answered than the one that was named")

// run sends the calls in one pipeline, and again those that a repetition may mend, until the context's deadline.
func (n *redisNamespace) run(ctx context.Context, calls ...*redisCall) {
	left, pause, hasLooked := calls, pauseMin, map[string]bool{}
	var cause error // why a call has no answer, but for the deadline
	for round := 0; len(left) > 0; round++ {
		client := n.client()
		pipe, commands := client.Pipeline(), make([]*redis.Cmd, len(left))
		for at, call := range left {
			commands[at] = n.command(ctx, pipe, call)
		}
		_, failed := pipe.Exec(ctx)
		var again []*redisCall
		var why error
		for at, call := range left {
			var isLater bool
			if call.reply, call.err = commands[at].Result(); call.reply == nil && call.err == nil {
				call.err = failed // no connection was made
			} else if errors.Is(call.err, redis.Nil) {
				call.err = nil
			}
			if !call.fits() {
				n.words.renew()
				call.err = errNoReply
			}
			if call.err == nil {
				if call.function == "pointer" {
					n.pointerIn(call) // its reader gets the error
				}
				continue
			}
			if isElsewhere(call.err.Error()) {
				n.leave(client)
			}
			isLate := os.IsTimeout(call.err)
			if call.err, isLater = n.judge(ctx, call, call.err, hasLooked); call.err == nil {
				again = append(again, call)
			} else if isLater {
				if !isLate || cause == nil {
					cause = call.err
				}
				call.err = cause
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

// serverOf returns the replication id that the call expects of the server it reaches: each server has its own. The id
// that the same process had before follows it: key groups may have been compared under that one. It is "" for a server
// that is not listed for the version, and such a server refuses: it may lack rows, and not know that it was replaced.
func (n *redisNamespace) serverOf(ctx context.Context, call *redisCall) string {
	id, address := call.server, n.address(ctx, call.key)
	n.mu.Lock()
	defer n.mu.Unlock()
	if id == "" {
		id = n.ids[address]
	}
	for listed := range n.seen.listed {
		if id == "" {
			id = listed
		}
	}
	if !n.lists(call, id) {
		return ""
	} else if before := n.same[id]; before != "" {
		return id + "," + before
	}
	return id
}

// lists tells, under the lock, whether a pointer at the call's version or above lists the server with this id, or with
// the id that its process had before.
func (n *redisNamespace) lists(call *redisCall, id string) bool {
	version, _ := call.args[2].(int64)
	return n.seen.visible >= version && (n.seen.listed[id] || n.seen.listed[n.same[id]])
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
	if said := n.words.of(); said != nil && strings.Contains(err.Error(), "all sentinels") {
		err = said
	}
	message, _, _ := strings.Cut(withoutWords(err.Error()), " script: ")
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
	case errors.Is(err, redis.ErrClosed):
		return finalConfigError("%s: this gate was closed", n.where), false
	case !errors.As(err, &reply):
		return unavailable("%s: no answer: %w", n.where, err), true
	case code == "TGSERVER" && call.server != "":
		return errServer, false
	case code == "TGSERVER" && detail == "replica":
		return unavailable("%s: a server is a replica now; its primary is looked for", n.where), true
	case code == "TGSERVER":
		return n.otherServer(ctx, call, detail, hasLooked), false
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
		return writesRefused("%s: %s leases pin versions, the most that the store allows: close snapshots that are not read any more", n.where, detail), false
	case call.function == "lease" && has("OOM", "MISCONF", "NOREPLICAS", "NOPERM", "user executing the script"):
		return writesRefused("%s takes no leases: %s", n.where, message), false
	case has(refusing...):
		return configError("%s: the server refuses this user: %s", n.where, message), false
	case has("unction not found"):
		return n.otherLibrary(ctx), true
	case strings.HasPrefix(code, "TG"), has(damages...):
		return corrupt("%s: %s: %s; if somebody changed it, restore the store from a copy", n.where, call.key, message), false
	case has(mistakes...):
		return configError("%s: a server answered: %s", n.where, message), false
	}
	return unavailable("%s: a server answered: %s", n.where, message), true
}

// otherServer returns nil if rows of the server with this id may be read: the pointer lists it, or its process.
func (n *redisNamespace) otherServer(ctx context.Context, call *redisCall, id string, hasLooked map[string]bool) error {
	isListed := func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.lists(call, id)
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
	} else if node, isOne := n.client().(*redis.Client); isOne {
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
	return configError("%s: a server does not have the functions of library %q: a running writer loads them, or `tidegate redis-functions`", n.where, n.library)
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
