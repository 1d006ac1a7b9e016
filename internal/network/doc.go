// Package network serves Kafka's protocol on listeners: it accepts connections, cuts requests out of them, hands each to a
// Handler and writes the replies in the order of the requests.
//
// One goroutine serves a connection: it reads a request, calls the handler and, when the handler has replied by then and no
// earlier request waits, writes the reply itself, so that an ordinary request costs one read, one write and no handoff. A
// handler that cannot answer at once parks the request and calls Reply later from any goroutine; the connection reads on, within
// bounds, and the replies leave in request order. What a request waits for can be told with Park: a client that hangs up ends the
// wait.
//
// Memory: a request's bytes are held from its first byte to its reply and count against a budget for the whole node. A
// connection that needs more than is free waits for it without reading, so that TCP slows the client. Buffers grow as bytes
// arrive: a length prefix alone reserves nothing. An idle connection holds no buffers. What a handler makes of a large request,
// whose lists may take many times its bytes, counts against a second budget of the same size, before the handler sees it.
//
// Bytes that do not make a request close the connection, with one log line, and nothing else.
package network
