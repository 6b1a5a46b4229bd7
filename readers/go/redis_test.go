package reader

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
)

// reply is an error reply of a server.
type reply string

func (r reply) Error() string { return string(r) }
func (r reply) RedisError()   {}

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
		store := &redisStore{client: client}
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
