package reader

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
)

const dialTimeout, keepAlive, wordsMax = 5 * time.Second, 5 * time.Minute, 512

// lastWords are the errors that servers gave to new connections, by address: "" if a connection got a reply, or was not
// made. go-redis loses them where it asks Sentinels, and where a write fails after the server has closed the connection.
type lastWords struct {
	mu   sync.Mutex
	said map[string]string
}

func (w *lastWords) note(address, words string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said[address] = words
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
		connected := &connection{Conn: made, words: w, address: address, isNew: true}
		if config == nil {
			return plainConnection{connected}, nil
		}
		return connected, nil
	}
}

// connection is one whose end does not hide what the server said before: a write after the end is no error, and the next
// read has the words, or the end.
type connection struct {
	net.Conn
	words   *lastWords
	address string
	isNew   bool // nothing but errors was read
	said    string
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

// plainConnection is one without TLS: go-redis sees that it has ended before it uses it again.
type plainConnection struct{ *connection }

func (c plainConnection) SyscallConn() (syscall.RawConn, error) {
	plain, isPlain := c.Conn.(syscall.Conn)
	if !isPlain {
		return nil, errors.ErrUnsupported
	}
	return plain.SyscallConn()
}
