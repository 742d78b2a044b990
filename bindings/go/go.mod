module github.com/proxycfg/proxycfg/bindings/go

go 1.26
