module allranks/tools/bench

go 1.25
