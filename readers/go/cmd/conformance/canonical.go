package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"tidegate.example/reader"
)

const timestampLayout = "2006-01-02T15:04:05.000000Z"

// optionsOf returns a gate's options from those of the protocol.
func optionsOf(asked map[string]any) (*reader.Options, error) {
	options, secure := &reader.Options{}, &tls.Config{MinVersion: tls.VersionTLS12}
	for name, value := range asked {
		text, _ := value.(string)
		switch name {
		case "username":
			options.Username = text
		case "password":
			options.Password = text
		case "sentinel_username":
			options.SentinelUsername = text
		case "sentinel_password":
			options.SentinelPassword = text
		case "local_dc":
			options.LocalDC = text
		case "timeout_s":
			seconds, _ := value.(float64)
			options.Timeout = time.Duration(seconds * float64(time.Second))
		case "follow_redirects":
			servers, _ := value.([]any)
			if isOn, isBool := value.(bool); !isBool || isOn {
				options.FollowRedirects = []string{}
			}
			for _, server := range servers {
				options.FollowRedirects = append(options.FollowRedirects, fmt.Sprint(server))
			}
		case "ssl_ca_certs":
			content, err := os.ReadFile(text)
			if err != nil {
				return nil, err
			}
			secure.RootCAs = x509.NewCertPool()
			secure.RootCAs.AppendCertsFromPEM(content)
			options.TLS = secure
		case "ssl_certfile":
			key, _ := asked["ssl_keyfile"].(string)
			own, err := tls.LoadX509KeyPair(text, key)
			if err != nil {
				return nil, err
			}
			secure.Certificates = []tls.Certificate{own}
		case "ssl_keyfile":
		default:
			return nil, errUnsupported
		}
	}
	return options, nil
}

func keyOf(schema *reader.Schema, values []any) reader.Key {
	types := make([]string, len(schema.Key))
	for at, column := range schema.Key {
		types[at] = column.Type
	}
	return keyOfTypes(types, values)
}

// keyOfTypes returns a key of canonical values. One that is not of its type stays as it is, and the reader refuses it.
func keyOfTypes(types []string, values []any) reader.Key {
	key := make(reader.Key, len(values))
	for at, value := range values {
		if key[at] = value; at >= len(types) {
			continue
		}
		text, isText := value.(string)
		if !isText {
			continue
		}
		switch kind, _, _ := strings.Cut(types[at], "("); kind {
		case "tinyint", "smallint", "int", "bigint":
			if number, err := strconv.ParseInt(text, 10, 64); err == nil {
				key[at] = number
			}
		case "binary":
			if content, err := hex.DecodeString(text); err == nil {
				key[at] = content
			}
		case "date":
			key[at] = reader.Date(text)
		case "timestamp":
			if moment, err := time.Parse(time.RFC3339Nano, text); err == nil {
				key[at] = moment
			}
		case "timestamp_ntz":
			key[at] = reader.LocalTime(text)
		case "decimal":
			key[at] = reader.Decimal(text)
		}
	}
	return key
}

// canonicalRow returns a row in the protocol's form: of a table of bytes a text in hex.
func canonicalRow(schema *reader.Schema, row reader.Row) any {
	if row == nil {
		return nil
	}
	if schema.Format == "bytes" {
		return canonical(row[schema.Value[0].Name])
	}
	return canonical(map[string]any(row))
}

func canonical(value any) any {
	switch of := value.(type) {
	case int64:
		return strconv.FormatInt(of, 10)
	case float32:
		return floatText(float64(of), 32)
	case float64:
		return floatText(of, 64)
	case []byte:
		return hex.EncodeToString(of)
	case time.Time:
		return of.UTC().Format(timestampLayout)
	case []any:
		values := make([]any, len(of))
		for at, each := range of {
			values[at] = canonical(each)
		}
		return values
	case map[string]any:
		values := make(map[string]any, len(of))
		for name, each := range of {
			values[name] = canonical(each)
		}
		return values
	case map[any]any:
		pairs := make([][]any, 0, len(of))
		for key, each := range of {
			pairs = append(pairs, []any{canonical(key), canonical(each)})
		}
		return pairs
	}
	return value // null, boolean, text, Decimal, Date, LocalTime
}

func floatText(number float64, bits int) string {
	if math.IsInf(number, 0) {
		return strings.TrimPrefix(strconv.FormatFloat(number, 'g', -1, bits)[:1], "+") + "Infinity"
	}
	return strconv.FormatFloat(number, 'g', -1, bits)
}
