// Sends the records of a file with fluent-logger-golang: ADDRESS VARIANT TAG RECORDS, where VARIANT joins any of
// ack, nanoseconds, json, async with "+", or is "plain". FORWARD_CA in the environment enables TLS; Go reads the root from SSL_CERT_FILE.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/fluent/fluent-logger-golang/fluent"
)

func exact(value interface{}) interface{} {
	switch v := value.(type) {
	case json.Number:
		if i, err := strconv.ParseInt(string(v), 10, 64); err == nil {
			return i
		}
		if u, err := strconv.ParseUint(string(v), 10, 64); err == nil {
			return u
		}
		f, err := v.Float64()
		check(err)
		return f
	case map[string]interface{}:
		for key, inner := range v {
			v[key] = exact(inner)
		}
	case []interface{}:
		for at, inner := range v {
			v[at] = exact(inner)
		}
	}
	return value
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	address, variant, tag, path := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	has := func(word string) bool { return strings.Contains(variant, word) }
	config := fluent.Config{
		RequestAck:         has("ack"),
		SubSecondPrecision: has("nanoseconds"),
		MarshalAsJSON:      has("json"),
		Async:              has("async"),
		ReadTimeout:        60 * time.Second,
		BufferLimit:        1 << 20,
	}
	if strings.HasPrefix(address, "unix:") {
		config.FluentNetwork, config.FluentSocketPath = "unix", address[len("unix:"):]
	} else {
		host, port, err := net.SplitHostPort(address)
		check(err)
		config.FluentHost = host
		config.FluentPort, err = strconv.Atoi(port)
		check(err)
		if os.Getenv("FORWARD_CA") != "" {
			config.FluentNetwork = "tls"
		}
	}
	logger, err := fluent.New(config)
	check(err)
	file, err := os.Open(path)
	check(err)
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 1<<20), 1<<24)
	for lines.Scan() {
		decoder := json.NewDecoder(strings.NewReader(lines.Text()))
		decoder.UseNumber()
		var record map[string]interface{}
		check(decoder.Decode(&record))
		exact(record)
		check(logger.PostWithTime(tag, time.Unix(1700000000+record["n"].(int64), 123456789), record))
	}
	check(lines.Err())
	check(logger.Close())
}
