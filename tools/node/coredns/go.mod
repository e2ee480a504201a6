// A module of its own: it asks for other versions of Kubernetes' libraries than the node.
module allranks/tools/node/coredns

go 1.26.0

require github.com/coredns/coredns v1.15.0

tool github.com/coredns/coredns
