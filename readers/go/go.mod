module tidegate.example/reader

go 1.22

require (
	github.com/cespare/xxhash/v2 v2.3.0
	github.com/gocql/gocql v1.7.0
	github.com/redis/go-redis/v9 v9.7.3
)

require (
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f // indirect
	github.com/golang/snappy v0.0.3 // indirect
	github.com/hailocab/go-hostpool v0.0.0-20160125115350-e80d13ce29ed // indirect
	gopkg.in/inf.v0 v0.9.1 // indirect
)
