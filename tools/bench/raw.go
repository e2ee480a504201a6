// The limit: posts the same pods as fast as the API server accepts them, with Go's HTTP client.
//
//	raw -url URL -ca FILE -token TOKEN [-concurrency N]
//
// Each line of standard input has a path, a tab, and a file with one JSON object per line; all of them are posted, then
// "done" is printed.
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
)

func main() {
	url := flag.String("url", "", "of the API server")
	ca := flag.String("ca", "", "its certificate")
	token := flag.String("token", "", "of a user who may create pods")
	concurrency := flag.Int("concurrency", 32, "requests at the same time")
	flag.Parse()

	certificate, err := os.ReadFile(*ca)
	fatal(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: roots},
		ForceAttemptHTTP2:   true, // one connection, like client-go
		MaxIdleConnsPerHost: *concurrency,
	}}
	send := func(verb, path string, body []byte) {
		request, err := http.NewRequest(verb, *url+path, bytes.NewReader(body))
		fatal(err)
		request.Header.Set("Authorization", "Bearer "+*token)
		request.Header.Set("Content-Type", "application/json")
		answer, err := client.Do(request)
		fatal(err)
		text, err := io.ReadAll(answer.Body)
		fatal(err)
		answer.Body.Close()
		if answer.StatusCode >= 300 {
			fatal(fmt.Errorf("%s %s: %d %s", verb, path, answer.StatusCode, text))
		}
	}
	send("GET", "/version", nil)
	fmt.Println("ready")

	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		path, file, _ := strings.Cut(lines.Text(), "\t")
		text, err := os.ReadFile(file)
		fatal(err)
		objects := make(chan []byte)
		var work sync.WaitGroup
		for range *concurrency {
			work.Go(func() {
				for object := range objects {
					send("POST", path, object)
				}
			})
		}
		for _, object := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
			objects <- object
		}
		close(objects)
		work.Wait()
		fmt.Println("done")
	}
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
