package reader

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gocql/gocql"
)

// TestErrorsOfCassandra have the types of what they prove.
func TestErrorsOfCassandra(t *testing.T) {
	of := &cassandraStore{where: "store cassandra://host/keyspace"}
	for text, want := range map[string]string{
		"gocql: unable to create session: Unable to perform authentication: Cannot achieve consistency level QUORUM": "StoreUnavailableError",
		"gocql: unable to create session: Provided username reader and/or password are incorrect, Authentication":    "ConfigError",
		gocql.ErrSessionClosed.Error(): "StoreUnavailableError",
	} {
		if err := of.errorOf(errors.New(text)); ErrorName(err) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := of.errorOf(fmt.Errorf("a page: %w", gocql.ErrSessionClosed)); !is[*ConfigError](err) {
		t.Error(err)
	}
}

// row is one of Cassandra's rows. As the driver does, it fills memory that it is given.
type row struct{ key string }

func (r row) Next() bool { return true }
func (r row) Err() error { return nil }
func (r row) Scan(to ...any) error {
	key, isKey := to[0].(*[]byte)
	if !isKey {
		return errors.New("the key is no bytes")
	}
	*key = append((*key)[:0], r.key...)
	return nil
}

// TestAPageThatIsReadAgain has the rows of its last try alone, and the key that it begins after.
func TestAPageThatIsReadAgain(t *testing.T) {
	var of rowsPage
	read := func(keys ...string) {
		of.begin()
		for _, key := range keys {
			if err := of.add(gocql.Scanner(row{key})); err != nil {
				t.Fatal(err)
			}
		}
	}
	read("k1", "k2")
	after := of[1].key
	read("k3", "k4", "k5") // and an error
	read("k3", "k4")
	if len(of) != 2 || string(of[0].key) != "k3" || string(of[1].key) != "k4" || string(after) != "k2" {
		t.Errorf("%q after %q", of, after)
	}
}
