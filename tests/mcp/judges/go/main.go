// The Go SDK as a client: judge SECONDS http URL TOKEN | stdio COMMAND...
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const call = "__import__('json').loads(tools.probe.go(a='x'))['argv'][-1]"
const image = "import os\nclass P:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + os.urandom(3 << 20)\nP()"

type bearer string

func (token bearer) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("Authorization", "Bearer "+string(token))
	return http.DefaultTransport.RoundTrip(request)
}

func main() {
	var transport mcp.Transport
	if os.Args[2] == "http" {
		transport = &mcp.StreamableClientTransport{Endpoint: os.Args[3], HTTPClient: &http.Client{Transport: bearer(os.Args[4])}}
	} else {
		transport = &mcp.CommandTransport{Command: exec.Command(os.Args[3], os.Args[4:]...)}
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "judge", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"decision": "accept"}}, nil
		},
	})
	session, err := client.Connect(context.Background(), transport, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	ask := func(ctx context.Context, tool string, arguments map[string]any) (map[string]any, []mcp.Content, error) {
		done, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
		if err != nil {
			return nil, nil, err
		}
		structured, _ := done.StructuredContent.(map[string]any)
		return structured, done.Content, nil
	}
	name := ""
	run := func(ctx context.Context, code string, more ...any) (map[string]any, []mcp.Content, error) {
		arguments := map[string]any{"code": code}
		if name != "" {
			arguments["session"] = name
		}
		for i := 0; i+1 < len(more); i += 2 {
			arguments[more[i].(string)] = more[i+1]
		}
		return ask(ctx, "run_code", arguments)
	}
	must := func(structured map[string]any, content []mcp.Content, err error) map[string]any {
		if err != nil {
			log.Fatal(err)
		}
		return structured
	}
	all := context.Background()
	found := map[string]any{}
	name, _ = must(run(all, "x = 42"))["session"].(string)
	found["value"] = must(run(all, "x"))["value"]
	found["silent"] = must(run(all, fmt.Sprintf("import time; time.sleep(%s); 'slept'", os.Args[1])))["value"]
	short, stop := context.WithTimeout(all, time.Second)
	_, _, err = run(short, "time.sleep(600)")
	stop()
	found["cancelled"] = err != nil && must(run(all, "x"))["value"] == 42.0
	_, content, err := run(all, image)
	if err != nil {
		log.Fatal(err)
	}
	sizes := []int{}
	for _, part := range content {
		if shown, ok := part.(*mcp.ImageContent); ok {
			sizes = append(sizes, len(shown.Data))
		}
	}
	found["image"] = sizes
	found["approved"] = must(run(all, call))["value"]
	job := must(run(all, "time.sleep(1); 'went on'", "wait_ms", 0))["job"]
	for i := 0; i < 100 && found["job"] == nil; i++ {
		found["job"] = must(ask(all, "get_job", map[string]any{"job": job, "wait_ms": 1000}))["value"]
	}
	json.NewEncoder(os.Stdout).Encode(found)
}
