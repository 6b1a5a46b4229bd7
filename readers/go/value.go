package reader

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
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
	found, err := object(content)
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

// object decodes a JSON object with its numbers as text: a float64 has fewer digits than a bigint or a decimal.
func object(content []byte) (map[string]any, error) {
	if !utf8.Valid(content) {
		return nil, fmt.Errorf("it is not UTF-8")
	}
	var found map[string]any
	decoder := json.NewDecoder(strings.NewReader(string(content)))
	decoder.UseNumber()
	if err := decoder.Decode(&found); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); err != io.EOF || found == nil {
		return nil, fmt.Errorf("more or less than one object")
	}
	return found, nil
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
	case map[string]any:
		return t.fieldsOf(of)
	}
	return nil, fmt.Errorf("a %T is no %s", found, t.name)
}

func (t *dataType) fieldsOf(found map[string]any) (any, error) {
	var err error
	switch t.kind {
	case "struct":
		values := make(map[string]any, len(t.fields))
		for _, field := range t.fields {
			if values[field.Name], err = field.of.value(found[field.Name]); err != nil {
				return nil, err
			}
		}
		return values, nil
	case "map":
		values := make(map[any]any, len(found))
		for name, each := range found {
			key, err := t.key.keyOfMap(name)
			if err != nil {
				return nil, err
			}
			if values[key], err = t.element.value(each); err != nil {
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
		return base64.StdEncoding.Strict().DecodeString(text)
	case "float", "double":
		if text == "NaN" || text == "Infinity" || text == "-Infinity" {
			return t.number(text)
		}
	case "date":
		if isDate(text) {
			return Date(text), nil
		}
	case "timestamp":
		moment, err := time.Parse(time.RFC3339Nano, text)
		if err == nil {
			return ofTime(t.kind, moment)
		}
	case "timestamp_ntz":
		moment, err := time.Parse("2006-01-02T15:04:05", text)
		if err == nil {
			return ofTime(t.kind, moment)
		}
	}
	return nil, fmt.Errorf("%.60q is no %s", text, t.name)
}

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
	switch isWhole := err == nil; t.kind {
	case "integer", "decimal", "float", "double":
		if text == "NaN" || text == "Infinity" || text == "-Infinity" {
			return t.text(text)
		}
		return t.number(text)
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
