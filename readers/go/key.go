package reader

import (
	"bytes"
	"fmt"
	"math/big"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

const (
	hashSeed       = 42
	exponentMax    = 999 // of a decimal's text, up and down
	keyGroupsMax   = 32_768
	dateLayout     = "2006-01-02"
	localLayout    = "2006-01-02T15:04:05.000000"
	minUs, afterUs = -62_135_596_800_000_000, 253_402_300_800_000_000 // the years 1 to 9999
)

// Key has the values of a table's key columns, in their order: string, []byte, bool, any integer type, Date, time.Time
// (a timestamp), LocalTime (a timestamp_ntz), Decimal.
type Key []any

// Decimal is an exact number in plain digits, with all digits of its scale: "1.50".
type Decimal string

// Rat returns the number; nil if the text is none.
func (d Decimal) Rat() *big.Rat {
	number, fits := new(big.Rat).SetString(string(d))
	if !fits {
		return nil
	}
	return number
}

// Date is a day of the years 1 to 9999, "2013-01-31".
type Date string

// LocalTime is a wall clock's time without a zone, "2013-01-31T10:00:00.000000", as Spark's timestamp_ntz.
type LocalTime string

// EncodeKey returns the bytes of a key whose columns have these types, in Spark's simple names. It returns a
// ConfigError if a value is not of its type.
func EncodeKey(types []string, key Key) ([]byte, error) {
	parsed, err := parseTypes(types)
	if err != nil {
		return nil, err
	}
	return encodeKey(parsed, key)
}

// KeyGroup returns the key group of a key's bytes, in a namespace with this number of them; stride is 1 unless the
// table has fewer.
func KeyGroup(key []byte, keyGroups, stride int) int {
	digest := xxhash.NewWithSeed(hashSeed)
	digest.Write(key)
	group := int(digest.Sum64() % uint64(keyGroups))
	return group - group%stride
}

func encodeKey(types []*dataType, key Key) ([]byte, error) {
	if len(key) != len(types) {
		return nil, configError("the key has %d columns, %d values were given", len(types), len(key))
	}
	if len(types) == 1 {
		return types[0].encode(key[0])
	}
	var all []byte
	for at, of := range types {
		part, err := of.encode(key[at])
		if err != nil {
			return nil, err
		}
		all = append(fmt.Appendf(all, "%d:", len(part)), part...)
		all = append(all, ',')
	}
	return all, nil
}

// decodeKey is the inverse of encodeKey, for scans: bytes that encodeKey writes for no key are corrupt.
func decodeKey(types []*dataType, content []byte) (Key, error) {
	key, rest := make(Key, len(types)), content
	for at, of := range types {
		part := rest
		if len(types) > 1 {
			length, after, found := bytes.Cut(rest, []byte(":"))
			size, err := strconv.Atoi(string(length))
			if !found || err != nil || size < 0 || size >= len(after) || after[size] != ',' {
				return nil, corrupt("%.60q is no key of %d columns", content, len(types))
			}
			part, rest = after[:size], after[size+1:]
		} else {
			rest = nil
		}
		value, err := of.decode(part)
		if err == nil {
			var again []byte
			if again, err = of.encode(value); err == nil && !bytes.Equal(again, part) {
				err = fmt.Errorf("it is not spelled as a key is")
			}
		}
		if err != nil {
			return nil, corrupt("%.60q is no key of type %s: %w", content, of.name, err)
		}
		key[at] = value
	}
	if len(rest) > 0 {
		return nil, corrupt("%.60q is no key of %d columns", content, len(types))
	}
	return key, nil
}

// encode returns the bytes of one key column's value.
func (t *dataType) encode(value any) ([]byte, error) {
	switch t.kind {
	case "string":
		if text, fits := value.(string); fits && utf8.ValidString(text) && t.name == "string" {
			return []byte(text), nil
		}
	case "binary":
		if content, fits := value.([]byte); fits {
			return content, nil
		}
	case "boolean":
		if truth, fits := value.(bool); fits {
			return strconv.AppendBool(nil, truth), nil
		}
	case "integer":
		if digits, fits := wholeNumber(value); fits {
			if _, err := strconv.ParseInt(digits, 10, t.bits); err == nil {
				return []byte(digits), nil
			}
		}
	case "date":
		if day, fits := value.(Date); fits && isDate(string(day)) {
			return []byte(day), nil
		}
	case "timestamp":
		if moment, fits := value.(time.Time); fits {
			return encodeTime(t, moment)
		}
	case "timestamp_ntz":
		if local, fits := value.(LocalTime); fits {
			moment, err := time.Parse("2006-01-02T15:04:05", string(local))
			if err == nil {
				return encodeTime(t, moment)
			}
		}
	case "decimal":
		text, fits := value.(Decimal)
		if digits, whole := wholeNumber(value); whole {
			text, fits = Decimal(digits), true
		}
		if exact, err := exactDecimal(string(text), t.precision, t.scale); fits && err == nil {
			return []byte(exact), nil
		}
	}
	return nil, configError("%v (%T) is not a value of the key column's type, %s", value, value, t.name)
}

func encodeTime(t *dataType, moment time.Time) ([]byte, error) {
	us := moment.UnixMicro()
	if us < minUs || us >= afterUs || moment.Nanosecond()%1_000 != 0 || moment.UTC().Year() > 9999 {
		return nil, configError("%v is no microsecond of the years 1 to 9999, as the key column's type, %s, needs", moment, t.name)
	}
	return strconv.AppendInt(nil, us, 10), nil
}

// decode returns the value of one key column's bytes.
func (t *dataType) decode(part []byte) (any, error) {
	text := string(part)
	switch t.kind {
	case "string":
		if t.name == "string" { // no key is a char or an interval
			return text, nil
		}
	case "binary":
		return bytes.Clone(part), nil
	case "boolean":
		return text == "true", nil
	case "integer":
		return strconv.ParseInt(text, 10, t.bits)
	case "date":
		return Date(text), nil
	case "timestamp", "timestamp_ntz":
		us, err := strconv.ParseInt(text, 10, 64)
		if err != nil || us < minUs || us >= afterUs {
			return nil, fmt.Errorf("no microsecond of the years 1 to 9999")
		}
		return ofMicroseconds(t.kind, us), nil
	case "decimal":
		return Decimal(text), nil
	}
	return nil, fmt.Errorf("no key has it")
}

func ofMicroseconds(kind string, us int64) any {
	moment := time.UnixMicro(us).UTC()
	if kind == "timestamp" {
		return moment
	}
	return LocalTime(moment.Format(localLayout))
}

func isDate(text string) bool {
	day, err := time.Parse(dateLayout, text)
	return err == nil && day.Year() >= 1
}

// wholeNumber returns the digits of a value of any integer type.
func wholeNumber(value any) (string, bool) {
	number := reflect.ValueOf(value)
	if number.CanInt() {
		return strconv.FormatInt(number.Int(), 10), true
	} else if number.CanUint() {
		return strconv.FormatUint(number.Uint(), 10), true
	}
	return "", false
}

// exactDecimal spells a number of JSON or of a key in plain digits, with all digits of the scale. It returns an error
// if it is not exactly one of decimal(precision,scale).
func exactDecimal(text string, precision, scale int) (Decimal, error) {
	digits, exponent, hasExponent := strings.Cut(strings.ToLower(text), "e")
	shift := 0
	if hasExponent {
		var err error
		if shift, err = strconv.Atoi(exponent); err != nil || shift < -exponentMax || shift > exponentMax {
			return "", fmt.Errorf("%.60s is no decimal(%d,%d)", text, precision, scale)
		}
	}
	digits, isNegative := strings.CutPrefix(digits, "-")
	whole, fraction, _ := strings.Cut(digits, ".")
	digits = whole + fraction
	move := scale - len(fraction) + shift // zeros to append
	for ; move < 0 && strings.HasSuffix(digits, "0"); move++ {
		digits = digits[:len(digits)-1]
	}
	fits := whole+fraction != "" && strings.Trim(digits, "0123456789") == ""
	if digits = strings.TrimLeft(digits, "0"); digits == "" {
		move, isNegative = 0, false
	}
	if !fits || move < 0 || len(digits)+move > precision {
		return "", fmt.Errorf("%.60s is not exactly a decimal(%d,%d)", text, precision, scale)
	}
	digits += strings.Repeat("0", move)
	if missing := scale + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	if scale > 0 {
		digits = digits[:len(digits)-scale] + "." + digits[len(digits)-scale:]
	}
	if isNegative {
		digits = "-" + digits
	}
	return Decimal(digits), nil
}
