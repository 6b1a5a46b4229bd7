package reader

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const dialTimeout, keepAlive, wordsMax = 5 * time.Second, 5 * time.Minute, 512

// textMax is twice the longest value that a store takes. A list has at most listMax elements, each list in it half of that.
const textMax, listMax, lineMax = 32 << 20, 1 << 20, 64 << 10

// lastWords are the errors that servers gave to new connections, by address: "" if a connection got a reply, or was not
// made. go-redis loses them where it asks Sentinels, and where a write fails after the server has closed the connection.
type lastWords struct {
	mu       sync.Mutex
	said     map[string]string
	renewals atomic.Int64
}

// renew makes go-redis use none of the connections again that are open now: on one of them a reply was no answer.
func (w *lastWords) renew() {
	if w != nil {
		w.renewals.Add(1)
	}
}

func (w *lastWords) note(address, words string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said[address] = withoutWords(words)
}

// withoutWords returns what a server said without the words of the command that it quotes: they may be a login.
func withoutWords(said string) string {
	said, _, _ = strings.Cut(said, ", with args beginning with")
	return said
}

// of returns an error with the words of one server: a refusal only if all servers refuse.
func (w *lastWords) of() error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var found error
	for _, words := range w.said {
		if words == "" {
			return nil
		}
		if found == nil || isRefusal(found.Error()) {
			found = endedError(words)
		}
	}
	return found
}

// endedError is the error reply of a server that ended a connection after it.
type endedError string

func (e endedError) Error() string { return string(e) }

// RedisError makes it an error reply for those who ask what an error means. go-redis takes it for the end that it is.
func (e endedError) RedisError() {}

// dialer returns the function that connects, as go-redis's own.
func (w *lastWords) dialer(config *tls.Config) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var made net.Conn
		var err error
		plain := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
		if config == nil {
			made, err = plain.DialContext(ctx, network, address)
		} else {
			made, err = (&tls.Dialer{NetDialer: plain, Config: config}).DialContext(ctx, network, address)
		}
		if err != nil {
			w.note(address, "")
			return nil, err
		}
		return &connection{Conn: made, words: w, renewals: w.renewals.Load(), address: address, isNew: true}, nil
	}
}

// connection is one whose end does not hide what the server said before: a write after the end is no error, and the next
// read has the words, or the end.
type connection struct {
	net.Conn
	words    *lastWords
	renewals int64 // until it was made
	address  string
	isNew    bool // nothing but errors was read
	said     string
	arriving replies
}

func (c *connection) Write(content []byte) (int, error) {
	count, err := c.Conn.Write(content)
	var late net.Error
	if err == nil || errors.As(err, &late) && late.Timeout() || errors.Is(err, net.ErrClosed) {
		return count, err
	}
	return len(content), nil
}

func (c *connection) Read(content []byte) (int, error) {
	count, err := c.Conn.Read(content)
	if wrong := c.arriving.take(content[:count]); wrong != nil {
		return 0, wrong
	}
	if !c.isNew {
		return count, err
	}
	if count > 0 {
		c.said = ""
		if c.isNew = content[0] == '-'; c.isNew {
			line, _, _ := strings.Cut(string(content[1:min(count, wordsMax)]), "\r\n")
			c.said = line
		}
		c.words.note(c.address, c.said)
	} else if c.said != "" && err != nil {
		err = endedError(c.said)
	}
	return count, err
}

// SyscallConn lets go-redis see, before it uses the connection again, that it has ended, or that something arrived which no
// call waits for. An error is the end of the connection.
func (c *connection) SyscallConn() (syscall.RawConn, error) {
	made := c.Conn
	if secure, isSecure := made.(*tls.Conn); isSecure {
		made = secure.NetConn()
	}
	plain, isPlain := made.(syscall.Conn)
	if !isPlain || c.renewals != c.words.renewals.Load() {
		return nil, errors.ErrUnsupported
	}
	return plain.SyscallConn()
}

var errNoReply = errors.New("the reply has another form than replies to the call: another program answers there, or a proxy mixes" +
	" replies; connect to the server itself")

// replies follows the lengths in what arrives: go-redis makes room for all that one announces.
type replies struct {
	open []int  // the elements that are left of each list that has begun
	skip int    // the bytes that are left of a text
	line []byte // of the line that has begun
}

// take returns an error at a line that begins no reply, or a longer one than any of a store.
func (r *replies) take(content []byte) error {
	for len(content) > 0 {
		if count := min(r.skip, len(content)); count > 0 {
			r.skip, content = r.skip-count, content[count:]
			if r.skip == 0 {
				r.ended()
			}
			continue
		}
		part, rest, isWhole := bytes.Cut(content, []byte("\n"))
		r.line, content = append(r.line, part...), rest
		if len(r.line) > lineMax {
			return errNoReply
		} else if !isWhole {
			break
		} else if !r.begin(strings.TrimSuffix(string(r.line), "\r")) {
			return errNoReply
		}
		r.line = r.line[:0]
	}
	return nil
}

// begin takes a line that begins a reply, or an element of one. Sentinels are asked in RESP3.
func (r *replies) begin(line string) bool {
	kind, digits := line[:min(1, len(line))], line[min(1, len(line)):]
	number, err := strconv.Atoi(digits)
	isText, isList := strings.Contains("$!=", kind), strings.Contains("*~>%", kind)
	switch {
	case kind == "", isText && number > textMax, isList && number > listMax>>len(r.open), (isText || isList) && number < -1,
		(isText || isList || kind == ":") && err != nil, !isText && !isList && !strings.Contains("+-:_#,(", kind):
		return false
	case isText && number >= 0:
		r.skip = number + len("\r\n")
		return true
	case isList && number > 0:
		if kind == "%" {
			number *= 2
		}
		r.open = append(r.open, number)
		return true
	}
	r.ended()
	return true
}

// ended notes the end of an element, and of the lists whose last one it is.
func (r *replies) ended() {
	for last := len(r.open) - 1; last >= 0; last-- {
		if r.open[last]--; r.open[last] > 0 {
			return
		}
		r.open = r.open[:last]
	}
}
