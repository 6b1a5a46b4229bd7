package reader

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Row has the value columns of a row by name; a nil Row is an absent one. The types of its values:
//
//	tinyint, smallint, int, bigint        int64
//	float, double                         float32, float64
//	decimal(p,s)                          Decimal
//	boolean                               bool
//	string, char, varchar, intervals      string
//	binary, the column of a bytes table   []byte
//	date, timestamp, timestamp_ntz        Date, time.Time in UTC, LocalTime
//	array, struct                         []any, map[string]any
//	map                                   map[any]any
//
// A null is nil. A row that an older version of a state wrote has that version's columns.
type Row map[string]any

// DecodeValue decodes a stored value, with its flags byte, at a version with this time of its decision. A nil Row is
// an absent one: a delete marker, or a value that had expired. It returns a CorruptError for bytes that no release
// writes.
func (s *Schema) DecodeValue(stored []byte, decidedAtUs int64) (Row, error) {
	content, err := payload(stored, decidedAtUs)
	if content == nil || err != nil {
		return nil, err
	}
	return s.decode(content)
}

// payload returns the value in a stored one, nil if there is none at a version with this time.
func payload(stored []byte, decidedAtUs int64) ([]byte, error) {
	if len(stored) == 0 {
		return nil, corrupt("a stored value is empty")
	}
	flag, rest := stored[0], stored[1:]
	isLive := true
	if flag == 'e' || flag == 'x' {
		if len(rest) < 8 {
			return nil, corrupt("a stored value is cut within its expiry")
		}
		isLive = int64(binary.BigEndian.Uint64(rest)) > decidedAtUs
		rest = rest[8:]
	}
	if flag == 's' || flag == 'x' || flag == 'd' {
		if len(rest) < 1 || len(rest) < 1+int(rest[0]) {
			return nil, corrupt("a stored value is cut within its sequence")
		}
		rest = rest[1+int(rest[0]):]
	}
	switch flag {
	case '+', 'e', 's', 'x':
		if isLive {
			return rest, nil
		}
		return nil, nil
	case '-', 'd':
		if len(rest) > 0 {
			return nil, corrupt("a delete marker has %d bytes too many", len(rest))
		}
		return nil, nil
	}
	return nil, corrupt("a stored value has unknown flags %#x", flag)
}

func (s *Schema) decode(content []byte) (Row, error) {
	if s.Format == "bytes" {
		return Row{s.Value[0].Name: content}, nil
	}
	found, err := objectIn(content)
	if err != nil {
		return nil, corrupt("the stored value %.60q is no JSON object: %w", content, err)
	}
	columns, isFirst := s.Value, true
	for version, own := range s.versions {
		for _, column := range own {
			if _, has := found[column.field]; !has {
				continue
			}
			if !isFirst {
				return nil, corrupt("the stored value %.60q has fields of several state versions", content)
			}
			columns, isFirst = s.versions[version], false
			break
		}
	}
	row := make(Row, len(columns))
	for _, column := range columns {
		if row[column.Name], err = column.of.value(found[column.field]); err != nil {
			return nil, corrupt("the stored value %.60q does not fit column %s, %s: %w", content, column.Name, column.Type, err)
		}
	}
	return row, nil
}

// object is a JSON object: of a name that is there twice, the last value counts.
type object []member

type member struct {
	name  string
	value any
}

func (o object) byName() map[string]any {
	found := make(map[string]any, len(o))
	for _, each := range o {
		found[each.name] = each.value
	}
	return found
}

// objectIn decodes a JSON object in UTF-8, with its numbers as text: a float64 has fewer digits than a bigint or a
// decimal. Escapes of surrogates come in pairs, in fields that are ignored, too.
func objectIn(content []byte) (map[string]any, error) {
	if !utf8.Valid(content) || !json.Valid(content) || bytes.Contains(content, []byte(`\u`)) && hasLoneSurrogate(content) {
		return nil, fmt.Errorf("it is not JSON in UTF-8")
	}
	found, isObject := (&validJSON{content}).value().(object)
	if !isObject {
		return nil, fmt.Errorf("it is no object")
	}
	return found.byName(), nil
}

func hasLoneSurrogate(content []byte) bool {
	for at := 0; at < len(content); at++ {
		if content[at] != '\\' {
			continue
		} else if at++; content[at] != 'u' {
			continue
		}
		unit := unitAt(content, at-1)
		at += 4
		if utf16.IsSurrogate(unit) {
			if utf16.DecodeRune(unit, unitAt(content, at+1)) == unicode.ReplacementChar {
				return true
			}
			at += 6
		}
	}
	return false
}

// unitAt returns the UTF-16 unit that is escaped here; 0: none is.
func unitAt(content []byte, at int) rune {
	if at+6 > len(content) || content[at] != '\\' || content[at+1] != 'u' {
		return 0
	}
	unit, _ := strconv.ParseUint(string(content[at+2:at+6]), 16, 16)
	return rune(unit)
}

// validJSON is the rest of a text that json.Valid has accepted.
type validJSON struct{ rest []byte }

// next skips spaces, and what separates values; it returns the first byte of what follows.
func (v *validJSON) next() byte {
	v.rest = bytes.TrimLeft(v.rest, " \t\r\n,:")
	return v.rest[0]
}

func (v *validJSON) take(length int) string {
	taken := v.rest[:length]
	v.rest = v.rest[length:]
	return string(taken)
}

// value reads the next value: nil, bool, json.Number, string, []any or object.
func (v *validJSON) value() any {
	switch v.next() {
	case '{':
		found := object{}
		for v.take(1); v.next() != '}'; {
			name := v.text()
			found = append(found, member{name, v.value()})
		}
		v.take(1)
		return found
	case '[':
		found := []any{}
		for v.take(1); v.next() != ']'; {
			found = append(found, v.value())
		}
		v.take(1)
		return found
	case '"':
		return v.text()
	}
	end := bytes.IndexAny(v.rest, " \t\r\n,]}")
	if end < 0 {
		end = len(v.rest)
	}
	switch word := v.take(end); word {
	case "null":
		return nil
	case "true", "false":
		return word == "true"
	default:
		return json.Number(word)
	}
}

func (v *validJSON) text() string {
	end := 1
	for ; v.rest[end] != '"'; end++ {
		if v.rest[end] == '\\' {
			end++
		}
	}
	quoted := v.take(end + 1)
	if strings.IndexByte(quoted, '\\') < 0 {
		return quoted[1:end]
	}
	var text string
	json.Unmarshal([]byte(quoted), &text)
	return text
}

func (t *dataType) value(found any) (any, error) {
	if found == nil {
		return nil, nil
	}
	switch of := found.(type) {
	case json.Number:
		return t.number(string(of))
	case bool:
		if t.kind == "boolean" {
			return of, nil
		}
	case string:
		return t.text(of)
	case []any:
		if t.kind == "array" {
			var err error
			for at := range of {
				if of[at], err = t.element.value(of[at]); err != nil {
					return nil, err
				}
			}
			return of, nil
		}
	case object:
		return t.fieldsOf(of)
	}
	return nil, fmt.Errorf("a %T is no %s", found, t.name)
}

func (t *dataType) fieldsOf(found object) (any, error) {
	var err error
	switch t.kind {
	case "struct":
		values, named := make(map[string]any, len(t.fields)), found.byName()
		for _, field := range t.fields {
			if values[field.Name], err = field.of.value(named[field.Name]); err != nil {
				return nil, err
			}
		}
		return values, nil
	case "map":
		values, last := make(map[any]any, len(found)), make(map[string]int, len(found))
		for at, each := range found {
			last[each.name] = at
		}
		for at, each := range found {
			if last[each.name] != at { // a key NaN replaces no other one
				continue
			}
			key, err := t.key.keyOfMap(each.name)
			if err != nil {
				return nil, err
			}
			if values[key], err = t.element.value(each.value); err != nil {
				return nil, err
			}
		}
		return values, nil
	}
	return nil, fmt.Errorf("an object is no %s", t.name)
}

func (t *dataType) number(text string) (any, error) {
	switch t.kind {
	case "integer":
		return strconv.ParseInt(text, 10, t.bits)
	case "float":
		number, err := strconv.ParseFloat(text, 32)
		return float32(number), err
	case "double":
		return strconv.ParseFloat(text, 64)
	case "decimal":
		return exactDecimal(text, t.precision, t.scale)
	}
	return nil, fmt.Errorf("a number is no %s", t.name)
}

func (t *dataType) text(text string) (any, error) {
	switch t.kind {
	case "string":
		return text, nil
	case "binary":
		if !strings.ContainsAny(text, "\r\n") { // they would be skipped
			return base64.StdEncoding.Strict().DecodeString(text)
		}
	case "float", "double":
		if text == "NaN" || text == "Infinity" || text == "-Infinity" {
			return t.number(text)
		}
	case "date":
		if isDate(text) {
			return Date(text), nil
		}
	case "timestamp", "timestamp_ntz":
		local, isInstant := strings.CutSuffix(text, "Z")
		fits := len(local) == secondEnd || len(local) > secondEnd+1 && len(local) <= secondEnd+7 && local[secondEnd] == '.'
		moment, err := time.Parse("2006-01-02T15:04:05", local) // with any fraction
		if fits && err == nil && isInstant == (t.kind == "timestamp") {
			return ofTime(t.kind, moment)
		}
	}
	return nil, fmt.Errorf("%.60q is no %s", text, t.name)
}

const secondEnd = len("2013-01-01T10:00:00")

func ofTime(kind string, moment time.Time) (any, error) {
	us := moment.UnixMicro()
	if us < minUs || us >= afterUs || moment.Nanosecond()%1_000 != 0 {
		return nil, fmt.Errorf("%v is no microsecond of the years 1 to 9999", moment)
	}
	return ofMicroseconds(kind, us), nil
}

// keyOfMap returns the value of a map's key, which is text in JSON. A whole number is the number of days, or of
// microseconds, since 1970: the form of older releases.
func (t *dataType) keyOfMap(text string) (any, error) {
	number, err := strconv.ParseInt(text, 10, 64)
	isWhole := err == nil && isNumber(text)
	switch t.kind {
	case "integer", "decimal", "float", "double":
		if isNumber(text) {
			return t.number(text)
		}
	case "boolean":
		if text == "true" || text == "false" {
			return text == "true", nil
		}
		return nil, fmt.Errorf("%.60q is no boolean", text)
	case "date":
		if isWhole && number*86_400_000_000 >= minUs && number < afterUs/86_400_000_000 && number > -1_000_000 {
			return Date(time.Unix(number*86_400, 0).UTC().Format(dateLayout)), nil
		}
	case "timestamp", "timestamp_ntz":
		if isWhole && number >= minUs && number < afterUs {
			return ofMicroseconds(t.kind, number), nil
		}
	}
	return t.text(text)
}

var isNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`).MatchString // of JSON
