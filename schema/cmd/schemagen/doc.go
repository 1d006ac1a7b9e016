// Command schemagen writes the Go code of every record that schema/ describes.
//
//	go run ./schema/cmd/schemagen [-out internal/message]
//
// go generate in schema/ runs it. What it writes is checked in, and a test there fails when the two have parted.
package main
