// Programs that check workflows and sign releases: `tools/go-tools.sh actionlint`, `tools/go-tools.sh signing`.
module allranks/tools/release

go 1.26.0

require (
	github.com/google/go-containerregistry v0.22.1
	github.com/rhysd/actionlint v1.7.12
	github.com/sigstore/cosign/v3 v3.1.3
)

tool (
	github.com/google/go-containerregistry/cmd/crane
	github.com/rhysd/actionlint/cmd/actionlint
	github.com/sigstore/cosign/v3/cmd/cosign
)
