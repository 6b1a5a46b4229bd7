// Reads keys of a tidegate table from one Redis server, all at one version, without tidegate, as in
// go run . redis://localhost:6379 flights aircraft N14228 N24211
// Keys are encoded as docs/storage-format.md says. Each line is a key, its key group, and its value.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/redis/go-redis/v9"
)

var again = errors.New("the version was retired, or the server was not compared with the log yet")

func main() {
	if len(os.Args) < 5 {
		log.Fatal("usage: reader URL NAMESPACE-OR-ALIAS TABLE KEY...")
	}
	options, err := redis.ParseURL(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	client, lines := redis.NewClient(options), []string(nil)
	for n := 0; n < 5; n++ { // each with a pointer of its own: all keys are of one version
		if lines, err = read(client, os.Args[2], os.Args[3], os.Args[4:]); !errors.Is(err, again) {
			break
		}
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Join(lines, "\n"))
}

func read(client *redis.Client, namespace, table string, keys []string) (lines []string, err error) {
	ctx := context.Background()
	if named, err := client.HGet(ctx, "tg:{"+namespace+"}:alias", "namespace").Result(); err == nil {
		namespace = named
	}
	tag := "tg:{" + namespace
	var facts struct {
		Uuid      string
		KeyGroups uint64 `json:"key_groups"`
		Format    int
		DecidedAt int64 `json:"decided_at_us"`
		Tables    map[string]struct{ Start, Stride int64 }
	}
	found, err := client.HGetAll(ctx, tag+"}:meta").Result()
	if err != nil || json.Unmarshal([]byte(found["identity"]), &facts) != nil || facts.Format != 2 {
		return nil, fmt.Errorf("namespace %s: not there, or of another format: %v", namespace, err)
	}
	// Version and servers from one call: each server that is listed has all of this version.
	pointer, err := client.FCallRO(ctx, found["library"]+"_pointer", []string{tag + "}:meta"}, facts.Uuid).Slice()
	if err != nil {
		return nil, err
	}
	version, servers := fmt.Sprint(pointer[0]), fmt.Sprint(pointer[6])
	published, err := client.HGet(ctx, tag+"}:catalog", version).Result()
	if err != nil || json.Unmarshal([]byte(published[strings.Index(published, " ")+1:]), &facts) != nil {
		return nil, fmt.Errorf("version %s: %w: %v", version, again, err)
	}
	at, known := facts.Tables[table]
	if !known {
		return nil, fmt.Errorf("there is no table %s at version %s", table, version)
	}
	for server := ""; len(lines) < len(keys); {
		key, digest := keys[len(lines)], xxhash.NewWithSeed(42)
		digest.WriteString(key)
		group := digest.Sum64() % facts.KeyGroups
		if at.Stride > 0 { // the table has fewer key groups than the namespace
			group -= group % uint64(at.Stride)
		}
		reply, err := client.FCallRO(ctx, found["library"]+"_read", []string{fmt.Sprintf("%s/%d}:h", tag, group)},
			facts.Uuid, server, table, version, at.Start, key).Slice()
		code, id, _ := strings.Cut(fmt.Sprint(err), " ")
		switch {
		case err == nil:
			lines = append(lines, fmt.Sprintf("%s\t%d\t%s", key, group, value(reply[0], facts.DecidedAt)))
		case code == "TGSERVER" && id != server && strings.Contains(servers, id):
			server = id // it says who it is, and it is listed
		case code == "TGSERVER" || code == "TGEXPIRED":
			return nil, fmt.Errorf("%w: %v", again, err)
		default:
			return nil, err
		}
	}
	return lines, nil
}

// What has expired at the time when the version was decided is absent at it, whenever it is read.
func value(stored any, decidedAt int64) string {
	text, there := stored.(string)
	expires := there && (text[0] == 'e' || text[0] == 'x')
	if !there || text[0] == '-' || text[0] == 'd' ||
		expires && int64(binary.BigEndian.Uint64([]byte(text[1:9]))) <= decidedAt {
		return "(absent)"
	}
	skip := map[byte]int{'+': 1, 'e': 9, 's': 1, 'x': 9}[text[0]]
	if text[0] == 's' || text[0] == 'x' {
		skip += 1 + int(text[skip])
	}
	return text[skip:]
}
