// A server that answers like Google Cloud Storage, for tests: `tools/go-tools.sh gcs`.
module allranks/tools/gcs

go 1.26.0

require github.com/fsouza/fake-gcs-server v1.56.1

tool github.com/fsouza/fake-gcs-server
