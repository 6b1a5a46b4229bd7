package main

import (
	"context"
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"testing"

	"tidegate.example/reader"
)

const vectors = "../../../../conformance/vectors/"

func read(t *testing.T, name string, into any) {
	t.Helper()
	content, err := os.ReadFile(vectors + name)
	if err == nil {
		err = json.Unmarshal(content, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ask sends a vector as a request of the protocol; it returns the reply as JSON has it, or the error's name.
func ask(t *testing.T, do string, vector map[string]any) (any, string) {
	t.Helper()
	vector["do"] = do
	line, err := json.Marshal(vector)
	var asked request
	if err == nil {
		err = json.Unmarshal(line, &asked)
	}
	if err != nil {
		t.Fatal(err)
	}
	found, err := (&program{}).do(context.Background(), &asked)
	if err != nil {
		if name := reader.ErrorName(err); name != "" {
			return nil, name
		}
		t.Fatal(err)
	}
	var reply any
	if line, err = json.Marshal(found); err == nil {
		err = json.Unmarshal(line, &reply)
	}
	if err != nil {
		t.Fatal(err)
	}
	return reply, ""
}

func TestKeys(t *testing.T) {
	var keys []map[string]any
	read(t, "keys.json", &keys)
	for _, vector := range keys {
		groups, _ := vector["groups"].([]any)
		if expected, isRefused := vector["error"]; isRefused {
			vector["key_groups"] = 128
			if _, name := ask(t, "encode_key", vector); name != expected {
				t.Errorf("%v: %s, not %s", vector, name, expected)
			}
		} else if len(groups) == 0 {
			t.Errorf("%v has no key groups", vector)
		}
		for _, each := range groups {
			of := each.(map[string]any)
			vector["key_groups"], vector["stride"] = of["key_groups"], of["stride"]
			found, name := ask(t, "encode_key", vector)
			if expected := map[string]any{"bytes": vector["bytes"], "key_group": of["key_group"]}; !reflect.DeepEqual(found, expected) {
				t.Errorf("%v: %v %s, not %v", vector, found, name, expected)
			}
		}
	}
}

func TestValues(t *testing.T) {
	var values []map[string]any
	var schemas struct {
		Types   []struct{ Type string }
		Schemas []map[string]any
	}
	read(t, "values.json", &values)
	read(t, "schemas.json", &schemas)
	for _, vector := range append(values, schemas.Schemas...) {
		found, name := ask(t, "decode_value", vector)
		if expected, _ := vector["error"].(string); name != expected {
			t.Errorf("%v: %q, not %q (%v)", vector, name, expected, found)
		} else if content, _ := json.Marshal(vector["schema"]); !equal(found, vector["value"], floats.Match(content)) {
			t.Errorf("%v: %v", vector, found)
		}
	}
	for _, each := range schemas.Types {
		stored := map[string]any{"key": []any{map[string]any{"name": "k", "type": "string"}}, "value": []any{map[string]any{"name": "v", "type": each.Type}}, "value_format": "json"}
		if content, _ := json.Marshal(stored); true {
			if _, err := reader.ParseSchema(content); err != nil {
				t.Error(err)
			}
		}
	}
}

var floats = regexp.MustCompile("float|double")

// equal compares canonical values: floats, where there are any, as numbers, pairs of a map in any order.
func equal(one, other any, hasFloats bool) bool {
	switch of := one.(type) {
	case string:
		text, isText := other.(string)
		number, errOne := strconv.ParseFloat(of, 32)
		same, errOther := strconv.ParseFloat(text, 32)
		return isText && (of == text || hasFloats && errOne == nil && errOther == nil && number == same)
	case []any:
		all, isList := other.([]any)
		if !isList || len(all) != len(of) {
			return false
		}
		left := append([]any{}, all...)
	each:
		for _, value := range of {
			for at := range left {
				if equal(value, left[at], hasFloats) {
					left = append(left[:at], left[at+1:]...)
					continue each
				}
			}
			return false
		}
		return true
	case map[string]any:
		all, isObject := other.(map[string]any)
		if !isObject || len(all) != len(of) {
			return false
		}
		for name, value := range of {
			if !equal(value, all[name], hasFloats) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(one, other)
}
