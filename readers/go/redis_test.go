package reader

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// reply is an error reply of a server.
type reply string

func (r reply) Error() string { return string(r) }
func (r reply) RedisError()   {}

// TestALoginIsNotRepeated has the reply of a server without AUTH, which quotes the command that it does not know.
func TestALoginIsNotRepeated(t *testing.T) {
	said := reply("ERR unknown command 'AUTH', with args beginning with: 'u' 'hunter2'")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	words := &lastWords{said: map[string]string{}}
	words.note("a", string(said))
	of := newRedisStore(client, "", nil, nil).open("flights", &identity{UUID: "u"}).(*redisNamespace)
	err, _ := of.judge(ctx, of.call("pointer"), said, map[string]bool{})
	for _, found := range []error{err, words.of()} {
		if strings.Contains(found.Error(), "hunter2") || !strings.Contains(found.Error(), "AUTH") {
			t.Errorf("an error is %q", found)
		}
	}
}

// TestRefusals compares what an error reply leads to with the vectors. No server is asked.
func TestRefusals(t *testing.T) {
	content, err := os.ReadFile("../../conformance/vectors/refusals.json")
	var vectors []struct{ Call, Reply, Does, Error string }
	if err == nil {
		err = json.Unmarshal(content, &vectors)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	for _, vector := range vectors {
		store := newRedisStore(client, "", nil, nil)
		of := store.open("flights", &identity{UUID: "u"}).(*redisNamespace)
		call := of.call(vector.Call, int64(0), int64(0))
		err, isLater := of.judge(ctx, call, reply(vector.Reply), map[string]bool{})
		var refused *StoreUnavailableError
		does := "refuse"
		if isLater {
			does = "send it again"
		} else if errors.As(err, &refused) && refused.refusesWrites {
			does = "go on without a lease"
		} else if is[*SnapshotExpiredError](err) {
			does = "read the pointer again"
		} else if vector.Does == "send it again with the server's id" {
			continue // the pointer is read first
		}
		if does != vector.Does || vector.Error != "" && ErrorName(err) != vector.Error && vector.Reply != "ERR Function not found" {
			t.Errorf("%+v: %s, %v", vector, does, err)
		}
	}
}

// answers is a server: it answers the commands of a client, an error with an error reply.
type answers func(command []any) any

func (a answers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a answers) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, command redis.Cmder) error {
		switch answer := a(command.Args()).(type) {
		case error:
			command.SetErr(answer)
		case string:
			command.(*redis.StringCmd).SetVal(answer)
		default:
			command.(*redis.Cmd).SetVal(answer)
		}
		return command.Err()
	}
}

func (a answers) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		for _, command := range commands {
			a.ProcessHook(nil)(ctx, command)
		}
		return nil
	}
}

// served returns the namespace of a server, and a context with a deadline.
func served(t *testing.T, server answers) (context.Context, *redisNamespace) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	client.AddHook(server)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	t.Cleanup(func() { cancel(); client.Close() })
	return ctx, newRedisStore(client, "", nil, nil).open("flights", &identity{UUID: "u", library: "lib"}).(*redisNamespace)
}

// TestAServerThatIsNotListedAnyMore has an old primary that does not know that it was replaced.
func TestAServerThatIsNotListedAnyMore(t *testing.T) {
	visible, listed := "1", "old"
	ctx, of := served(t, func(command []any) any {
		server := func() any {
			if command[5] != "old" {
				return reply("TGSERVER old")
			}
			return nil
		}
		switch command[1] {
		case "lib_pointer":
			return []any{visible, "digest", "1", "w", "0", nil, listed, "1", nil}
		case "lib_read":
			if refused := server(); refused != nil {
				return refused
			}
			return []any{"+{}"}
		case "lib_scan":
			if refused := server(); refused != nil {
				return refused
			}
			return []any{"old", "0", int64(1), []any{"k", "+{}"}}
		case "everything":
			return "run_id:r\nmaster_replid:old\n"
		}
		return []any{nil} // processes
	})
	at := func(version int64) *keysRead {
		return &keysRead{of: &view{table: "t", version: version}, keys: [][]byte{[]byte("k")}}
	}
	read := at(1)
	if _, err := of.read(ctx, []*keysRead{read}, 1, new(int64)); err != nil || string(read.values[0]) != "+{}" {
		t.Fatalf("a listed server is read: %q, %v", read.values, err)
	}
	if _, err := of.read(ctx, []*keysRead{at(2)}, 2, nil); !is[*StoreNotVerifiedError](err) {
		t.Errorf("the list is of version 1, and 2 was read: %v", err)
	}
	visible, listed = "2", "new"
	if _, err := of.pointer(ctx, 0); err != nil {
		t.Fatal(err)
	}
	for version := int64(1); version <= 2; version++ { // 1: a snapshot
		if _, err := of.read(ctx, []*keysRead{at(version)}, version, nil); !is[*StoreNotVerifiedError](err) {
			t.Errorf("version %d was read: %v", version, err)
		}
		if _, err := of.scan(ctx, at(version).of, []*groupScan{{}}); !is[*StoreNotVerifiedError](err) {
			t.Errorf("version %d was scanned: %v", version, err)
		}
	}
}

// TestAScanWhoseServersChangeAllTheTime ends with an error of this package. Until then each row comes once.
func TestAScanWhoseServersChangeAllTheTime(t *testing.T) {
	ctx, of := served(t, func(command []any) any {
		if command[1] == "lib_pointer" {
			return []any{"1", "digest", "1", "w", "0", nil, "a", "1", nil}
		} else if command[5] != "a" || command[9] != "0" { // another server has the cursor
			return reply("TGSERVER a")
		}
		return []any{"a", "1:0", int64(2), []any{"k", "+{}"}}
	})
	count, scanned := 0, &groupScan{}
	for {
		page, err := of.scan(ctx, &view{table: "t", version: 1}, []*groupScan{scanned})
		if count += len(page); err == nil {
			continue
		} else if count != 1 || !is[*StoreUnavailableError](err) || ctx.Err() != nil {
			t.Errorf("%d rows, %v", count, err)
		}
		return
	}
}

// serverThatEnds is a server that says one thing to each client and ends the connection: at once, or after a byte of a
// request that it leaves unread, so that the end is a reset.
func serverThatEnds(t *testing.T, words string, isAsked bool) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			if isAsked {
				client.Read(make([]byte, 1))
			}
			client.Write([]byte(words))
			client.Close()
		}
	}()
	return listener.Addr().String()
}

// TestTheLastWordsOfAServer compares the error of a connect with what the server says before it ends the connection.
func TestTheLastWordsOfAServer(t *testing.T) {
	unavailable, config := "StoreUnavailableError", "ConfigError"
	for _, row := range [][3]string{
		{"ERR max number of clients reached", unavailable, "max number of clients"},
		{"LOADING Redis is loading the dataset in memory", unavailable, "loading the dataset"},
		{"MASTERDOWN Link with MASTER is down", unavailable, "MASTERDOWN"},
		{"no upstream host", unavailable, "no upstream host"},
		{"DENIED Redis is running in protected mode", config, "protected mode"},
		{"NOAUTH Authentication required.", config, "Authentication required"},
		{"WRONGPASS invalid username-password pair", config, "invalid username-password pair"},
		{"ERR Protocol error: unauthenticated bulk length", config, "Protocol error"},
	} {
		for _, form := range []string{"redis://%s", "redis://user:sesame@%s/3", "redis+cluster://%s", "redis+cluster://:sesame@%s", "redis+sentinel://%s/primary"} {
			for _, isAsked := range []bool{false, true} {
				url := fmt.Sprintf(form, serverThatEnds(t, "-"+row[0]+"\r\n", isAsked))
				gate, err := Connect(context.Background(), url, "flights", &Options{Timeout: 150 * time.Millisecond})
				if err == nil {
					gate.Close()
					t.Fatalf("%s, %s: it connected", url, row[0])
				}
				if ErrorName(err) != row[1] || !strings.Contains(err.Error(), row[2]) {
					t.Errorf("%s, %s: %s, %v", form, row[0], ErrorName(err), err)
				}
			}
		}
	}
}

// TestLengths has what is refused before go-redis makes room for it, and replies in pieces of each size.
func TestLengths(t *testing.T) {
	for _, wrong := range []string{
		"$99999999999\r\n", "$999999999999999999999\r\n", "$33554433\r\n", "*1048577\r\n", "*2\r\n*524289\r\n", "$-2\r\n", "*x\r\n", ":\r\n",
		"?\r\n", "%1048577\r\n", "\r\n", strings.Repeat("*1\r\n", 30), strings.Repeat("+", 70_000),
	} {
		if err := new(replies).take([]byte(wrong)); err == nil {
			t.Errorf("%.20q is taken", wrong)
		}
	}
	right := "+OK\r\n-ERR x\r\n:-5\r\n$-1\r\n$0\r\n\r\n*-1\r\n*0\r\n*2\r\n*1\r\n$3\r\na\r\n\r\n*0\r\n$4\r\n?\r\n*\r\n:1\r\n%1\r\n+a\r\n_\r\n"
	for size := 1; size <= len(right); size++ {
		arriving := &replies{}
		for rest := []byte(right); len(rest) > 0; rest = rest[min(size, len(rest)):] {
			if err := arriving.take(rest[:min(size, len(rest))]); err != nil {
				t.Fatalf("%d bytes at once: %v before %q", size, err, rest)
			}
		}
		if len(arriving.open) > 0 || arriving.skip > 0 || len(arriving.line) > 0 {
			t.Errorf("%d bytes at once: %+v is left", size, arriving)
		}
	}
}

// TestASurplusReplyOverTLS has a server that sends a reply which no call waits for, on a connection that is not used.
func TestASurplusReplyOverTLS(t *testing.T) {
	made := httptest.NewTLSServer(nil)
	defer made.Close()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", made.TLS)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	idle := make(chan bool)
	go func() {
		for isFirst := true; ; isFirst = false {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			request := make([]byte, 1_000)
			client.Read(request)
			client.Write([]byte("-ERR no HELLO\r\n"))
			client.Read(request)
			client.Write([]byte("+right\r\n"))
			if isFirst {
				<-idle
				client.Write([]byte("+surplus\r\n"))
				idle <- true
			}
		}
	}()
	words := &lastWords{said: map[string]string{}}
	client := redis.NewClient(&redis.Options{Addr: listener.Addr().String(), Protocol: 2, DisableIndentity: true, MaxRetries: -1,
		Dialer: words.dialer(made.Client().Transport.(*http.Transport).TLSClientConfig)})
	defer client.Close()
	for isSent, tries := false, 0; tries < 2; tries++ {
		if answer, err := client.Ping(context.Background()).Result(); answer != "right" {
			t.Fatalf("%q, %v", answer, err)
		}
		if !isSent {
			idle <- true
			isSent = <-idle
		}
	}
}
