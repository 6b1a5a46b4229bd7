package reader

import (
	"errors"
	"fmt"
	"reflect"
)

// failure is the message of an error and its cause, for errors.Is and errors.As.
type failure struct{ error }

func (f failure) Unwrap() error { return errors.Unwrap(f.error) }

// ConfigError: a URL, option, name or key that does not fit, or a format that this release does not know. Correct it.
type ConfigError struct {
	failure
	isFinal bool // this gate never answers again
}

// StoreUnavailableError: no answer before the deadline. Nothing is proven; read again.
type StoreUnavailableError struct {
	failure
	refusesWrites bool
}

// StoreNotVerifiedError: a server or key group was not compared with the log yet, or the store is being filled.
// Read again; a running writer compares it within seconds, `tidegate repair` does so at once.
type StoreNotVerifiedError struct{ failure }

// SnapshotExpiredError: the version was retired, or its lease ran out or was revoked. Take a new snapshot.
type SnapshotExpiredError struct{ failure }

// VersionRegressedError: the store shows an older version, or another history, than this client has seen: it lost
// versions. Connect again to read the older version knowingly.
type VersionRegressedError struct{ failure }

// CorruptError: stored bytes are not of their format. Restore the store from a copy, or fill it again.
type CorruptError struct{ failure }

// StoreRemovedError: the store was removed from the namespace. Connect to Successor, a URL without login ("": none is
// named), or set Options.FollowRedirects.
type StoreRemovedError struct {
	failure
	Successor string
}

// StoreLostError: the namespace was in the store and is not there any more. `tidegate recover` rebuilds it.
type StoreLostError struct{ failure }

// WaitTimeoutError: the awaited version was not visible in time. Wait longer, or see `tidegate status`.
type WaitTimeoutError struct{ failure }

// ErrorName returns the name of one of this package's errors, the same in all languages; "" for any other error.
func ErrorName(err error) string {
	for ; err != nil; err = errors.Unwrap(err) {
		kind := reflect.TypeOf(err)
		if kind.Kind() == reflect.Pointer && kind.Elem().PkgPath() == reflect.TypeOf(failure{}).PkgPath() {
			return kind.Elem().Name()
		}
	}
	return ""
}

func failed(format string, args []any) failure { return failure{fmt.Errorf(format, args...)} }

func configError(format string, args ...any) error {
	return &ConfigError{failure: failed(format, args)}
}

func finalConfigError(format string, args ...any) error {
	return &ConfigError{failed(format, args), true}
}

// isFinal returns whether it is proven that a call never succeeds on this gate. Any other error passes: a wait continues.
func isFinal(err error) bool {
	var config *ConfigError
	return is[*CorruptError](err) || is[*VersionRegressedError](err) || is[*StoreRemovedError](err) ||
		errors.As(err, &config) && config.isFinal
}

func corrupt(format string, args ...any) error { return &CorruptError{failed(format, args)} }

func unavailable(format string, args ...any) error {
	return &StoreUnavailableError{failure: failed(format, args)}
}

func writesRefused(format string, args ...any) error {
	return &StoreUnavailableError{failed(format, args), true}
}

func notVerified(format string, args ...any) error {
	return &StoreNotVerifiedError{failed(format, args)}
}

func expired(format string, args ...any) error { return &SnapshotExpiredError{failed(format, args)} }

func regressed(format string, args ...any) error { return &VersionRegressedError{failed(format, args)} }

func storeLost(where string) error {
	return &StoreLostError{failed("%s: the namespace is not there any more; if nobody dropped it, the store lost it:"+
		" `tidegate recover` rebuilds it from the log", []any{where})}
}

func dropped(where string) error {
	return finalConfigError("%s: the namespace was dropped while it was open here; connect again", where)
}

func is[T error](err error) bool {
	var kind T
	return errors.As(err, &kind)
}
