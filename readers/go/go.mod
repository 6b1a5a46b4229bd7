module tidegate.example/reader

go 1.22

require (
	github.com/cespare/xxhash/v2 v2.3.0
	github.com/gocql/gocql v1.7.0
	github.com/redis/go-redis/v9 v9.7.3
)
