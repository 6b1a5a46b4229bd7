package reader

import (
	"encoding/json"
	"strconv"
	"strings"
)

const nestedMax = 100

// Column is a column of a table, with its type in Spark's simple name, as in "decimal(10,2)".
type Column struct {
	Name, Type string
	field      string // in the JSON of stored values
	of         *dataType
}

// Schema has the columns of a table at one version. Format is "json", or "bytes": one column of bytes.
type Schema struct {
	Key, Value   []Column
	Format       string
	StateVersion int
	versions     map[int][]Column // of a state with rows of several versions
	keyTypes     []*dataType
}

type dataType struct {
	name, kind             string // kind: integer, decimal, array, map, struct, or the name itself
	bits, precision, scale int
	key, element           *dataType
	fields                 []Column
}

type storedColumn struct{ Name, Type, Stored string } // its tree says the same as the type

// ParseSchema decodes a schema as stores have it. It returns a ConfigError for a type or value_format that it does not
// know, and a CorruptError for bytes that are no schema.
func ParseSchema(content []byte) (*Schema, error) {
	var stored struct {
		Key, Value   []storedColumn
		ValueFormat  string `json:"value_format"`
		StateVersion int    `json:"state_version"`
		Older        []struct {
			Version int
			Value   []storedColumn
		}
	}
	stored.ValueFormat = "json" // unless it has another one
	if err := json.Unmarshal(content, &stored); err != nil {
		return nil, corrupt("a schema cannot be read: %w", err)
	}
	format, schema := strings.TrimPrefix(stored.ValueFormat, "grouped_"), &Schema{StateVersion: max(stored.StateVersion, 1)}
	switch format {
	case "json", "json_renamed", "json_states":
		schema.Format = "json"
	case "bytes":
		schema.Format = "bytes"
	default:
		return nil, configError("value format %q is not known to this release; upgrade it", stored.ValueFormat)
	}
	var err error
	if schema.Key, err = columnsOf(stored.Key, false); err != nil {
		return nil, err
	}
	if schema.Value, err = columnsOf(stored.Value, schema.Format == "bytes"); err != nil {
		return nil, err
	}
	if len(schema.Key) == 0 || schema.Format == "bytes" && len(schema.Value) != 1 {
		return nil, corrupt("a schema of %q has %d key and %d value columns", format, len(schema.Key), len(schema.Value))
	}
	for _, column := range schema.Key {
		schema.keyTypes = append(schema.keyTypes, column.of)
	}
	if len(stored.Older) > 0 {
		schema.versions = map[int][]Column{schema.StateVersion: schema.Value}
		for _, older := range stored.Older {
			if schema.versions[older.Version], err = columnsOf(older.Value, false); err != nil {
				return nil, err
			}
		}
	}
	return schema, nil
}

func columnsOf(stored []storedColumn, isBytes bool) ([]Column, error) {
	columns := make([]Column, len(stored))
	for at, column := range stored {
		name := column.Type
		if isBytes {
			name = "binary"
		}
		of, err := parseType(name)
		if err != nil {
			return nil, err
		}
		field := column.Stored
		if field == "" {
			field = column.Name
		}
		columns[at] = Column{column.Name, column.Type, field, of}
	}
	return columns, nil
}

func parseTypes(names []string) ([]*dataType, error) {
	types := make([]*dataType, len(names))
	for at, name := range names {
		var err error
		if types[at], err = parseType(name); err != nil {
			return nil, err
		}
	}
	return types, nil
}

// parseType parses a type in its short form, as in "map<string,array<int>>".
func parseType(name string) (*dataType, error) {
	of, rest, err := readType(name, 0)
	if err == nil && rest != "" {
		err = unknownType(name)
	}
	return of, err
}

func unknownType(name string) error {
	return configError("type %.100q is not known to this release; upgrade it", name)
}

func readType(text string, depth int) (*dataType, string, error) {
	end := strings.IndexAny(text, "<,>(")
	if end < 0 {
		end = len(text)
	}
	word, rest, of := strings.TrimSpace(text[:end]), text[end:], &dataType{name: text}
	var err error
	if depth > nestedMax {
		return nil, "", unknownType(text)
	}
	nested := func(before, after string, into **dataType) {
		if err == nil && !strings.HasPrefix(rest, before) {
			err = unknownType(text)
		}
		if err == nil {
			*into, rest, err = readType(rest[len(before):], depth+1)
		}
		if err == nil && !strings.HasPrefix(rest, after) {
			err = unknownType(text)
		}
		if err == nil && after == ">" {
			rest = rest[1:]
		}
	}
	switch of.kind = word; word {
	case "array":
		nested("<", ">", &of.element)
	case "map":
		nested("<", ",", &of.key)
		nested(",", ">", &of.element)
	case "struct":
		for rest, of.fields = strings.TrimPrefix(rest, "<"), []Column{}; err == nil && !strings.HasPrefix(rest, ">"); {
			name, after, found := strings.Cut(rest, ":")
			field := Column{Name: name, field: name}
			if rest = after; !found {
				return nil, "", unknownType(text)
			}
			if field.of, rest, err = readType(rest, depth+1); err == nil && strings.HasPrefix(rest, ",") {
				rest = rest[1:]
			} else if err == nil && !strings.HasPrefix(rest, ">") {
				err = unknownType(text)
			}
			of.fields = append(of.fields, field)
		}
		rest = strings.TrimPrefix(rest, ">")
	default:
		if arguments := strings.IndexByte(rest, ')'); strings.HasPrefix(rest, "(") && arguments > 0 {
			word, rest = word+rest[:arguments+1], rest[arguments+1:]
		}
		of, err = simpleType(word)
	}
	if err != nil {
		return nil, "", err
	}
	of.name = text[:len(text)-len(rest)]
	if of.kind == "map" && strings.Contains(" array map struct binary void ", " "+of.key.kind+" ") {
		return nil, "", unknownType(of.name) // its keys' text in JSON does not tell their value
	}
	return of, rest, nil
}

// simpleType returns a type without parts.
func simpleType(word string) (*dataType, error) {
	of, arguments := &dataType{name: word, kind: word}, ""
	if before, inside, found := strings.Cut(word, "("); found {
		of.kind, arguments = before, strings.TrimSuffix(inside, ")")
	}
	parts := strings.Split(arguments, ",")
	of.precision, _ = strconv.Atoi(strings.TrimSpace(parts[0]))
	of.bits = map[string]int{"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}[of.kind]
	switch {
	case of.bits > 0 && arguments == "":
		of.kind = "integer"
	case of.kind == "decimal" && len(parts) == 2:
		var err error
		of.scale, err = strconv.Atoi(strings.TrimSpace(parts[1]))
		if err != nil || of.precision < 1 || of.precision > 38 || of.scale < 0 || of.scale > 38 {
			return nil, unknownType(word)
		}
	case of.kind == "char" || of.kind == "varchar", arguments == "" && strings.HasPrefix(word, "interval "),
		arguments == "" && strings.HasPrefix(word, "string collate "):
		of.kind = "string"
	case arguments == "" && strings.Contains(" string binary boolean float double date timestamp timestamp_ntz void ", " "+word+" "):
	default:
		return nil, unknownType(word)
	}
	return of, nil
}
