package client

import (
	"encoding/binary"
	"net"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// produceParts encodes a produce request of version 9 or later, its size first, into pieces: what stands around the batches, and
// the batches themselves, which aren't copied. The memory of buf is used for the pieces; both are returned for the next time.
func produceParts(buf []byte, parts net.Buffers, req *kmsg.ProduceRequest, clientID string, id int32) ([]byte, net.Buffers) {
	be := binary.BigEndian
	// Room for everything, so that the pieces stay where they are.
	room := 64 + len(clientID)
	if req.TransactionID != nil {
		room += len(*req.TransactionID)
	}
	size := 0
	for i := range req.Topics {
		room += 32 + len(req.Topics[i].Topic) + 24*len(req.Topics[i].Partitions)
	}
	if cap(buf) < room {
		buf = make([]byte, 0, room)
	}
	b := append(buf[:0], 0, 0, 0, 0)
	b = be.AppendUint16(b, uint16(kmsg.Produce))
	b = be.AppendUint16(b, uint16(req.Version))
	b = be.AppendUint32(b, uint32(id))
	b = be.AppendUint16(b, uint16(len(clientID)))
	b = append(append(b, clientID...), 0)
	if req.TransactionID == nil {
		b = append(b, 0)
	} else {
		b = appendCompact(b, *req.TransactionID)
	}
	b = be.AppendUint16(b, uint16(req.Acks))
	b = be.AppendUint32(b, uint32(req.TimeoutMillis))
	b = binary.AppendUvarint(b, uint64(len(req.Topics)+1))
	start := 0
	for i := range req.Topics {
		t := &req.Topics[i]
		if req.Version >= 13 {
			b = append(b, t.TopicID[:]...)
		} else {
			b = appendCompact(b, t.Topic)
		}
		b = binary.AppendUvarint(b, uint64(len(t.Partitions)+1))
		for j := range t.Partitions {
			p := &t.Partitions[j]
			b = be.AppendUint32(b, uint32(p.Partition))
			b = binary.AppendUvarint(b, uint64(len(p.Records)+1))
			parts = append(parts, b[start:len(b):len(b)], p.Records)
			size += len(p.Records)
			start = len(b)
			b = append(b, 0)
		}
		b = append(b, 0)
	}
	b = append(b, 0)
	parts = append(parts, b[start:])
	be.PutUint32(b, uint32(len(b)-4+size))
	return b, parts
}

func appendCompact(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s)+1)), s...)
}
