package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxRelayed bounds a message in either direction, in bytes.
const maxRelayed = 16 << 20

// maxRelayedStreams bounds the streams of the socket's clients: gRPC opens one for each
// target.
const maxRelayedStreams = 128

// relayed are the methods that the socket's clients may call.
var relayed = []string{
	"/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
	"/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources",
}

// maxTelemetryDepth bounds how deep values are inside of each other in log entries and spans.
const maxTelemetryDepth = 32

// message is one message as bytes.
type message struct{ data []byte }

// bytesCodec passes messages on as they are. It calls itself by the name of the codec
// that both ends use.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message)
	if !ok {
		return nil, fmt.Errorf("%T is not relayed", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(m.data)}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return fmt.Errorf("%T is not relayed", v)
	}
	m.data = data.Materialize()
	return nil
}

var _ encoding.CodecV2 = bytesCodec{}

// relay passes streams on to the zone.
type relay struct {
	// zone has the connection, with its credentials.
	zone grpc.ClientConnInterface
	// logs takes the log entries of an Envoy, and passes on its spans.
	logs *Logs
	// trials counts those of calls about which something else would be decided.
	trials *Trials
}

// take takes the log entries, or the spans, of one call.
func (r *relay) take(client grpc.ServerStream, method string) error {
	m := &message{}
	if err := client.RecvMsg(m); err != nil {
		return err
	}
	var answer []byte
	var err error
	if method == ExportTraces {
		answer, err = r.logs.ExportTraces(client.Context(), m.data)
	} else {
		answer, err = r.logs.Export(client.Context(), m.data, r.logs.Take, r.trials.Take)
	}
	if err != nil {
		return err
	}
	return client.SendMsg(&message{answer})
}

// readTelemetry reads log entries or spans, and returns them encoded, too. Envoy puts into
// them what callers send, as it is: of a text that is no UTF-8 the bytes that are none are
// replaced, as the decoder, and a collector's, would refuse those of all callers with it.
func readTelemetry(data []byte, into proto.Message) ([]byte, error) {
	if err := proto.Unmarshal(data, into); err == nil {
		return data, nil
	}
	repaired, err := appendValid(nil, data, into.ProtoReflect().Descriptor(), maxTelemetryDepth)
	if err != nil {
		return nil, err
	}
	return repaired, proto.Unmarshal(repaired, into)
}

// appendValid appends an encoded message to others, with texts that are UTF-8.
func appendValid(to, data []byte, message protoreflect.MessageDescriptor, depth int) ([]byte, error) {
	if depth == 0 {
		return nil, errors.New("the message is nested too deeply")
	}
	for len(data) > 0 {
		number, _, n := protowire.ConsumeField(data)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		record := data[:n]
		data = data[n:]
		_, wire, tag := protowire.ConsumeTag(record)
		field := message.Fields().ByNumber(number)
		if field == nil || wire != protowire.BytesType || field.Kind() != protoreflect.StringKind && field.Kind() != protoreflect.MessageKind {
			to = append(to, record...)
			continue
		}
		content, _ := protowire.ConsumeBytes(record[tag:]) // it is there, as the record is whole
		if field.Kind() == protoreflect.StringKind {
			content = bytes.ToValidUTF8(content, []byte("\ufffd"))
		} else {
			var err error
			if content, err = appendValid(nil, content, field.Message(), depth-1); err != nil {
				return nil, err
			}
		}
		to = protowire.AppendBytes(append(to, record[:tag]...), content)
	}
	return to, nil
}

// serve is the handler of every method of the socket.
func (r *relay) serve(_ any, client grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(client)
	if method == ExportLogs || method == ExportTraces {
		return r.take(client, method)
	}
	desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(client.Context(), nil))
	defer cancel()
	if method != relayed[0] && method != relayed[1] {
		return status.Errorf(codes.Unimplemented, "%s is not relayed: this socket is for xDS", method)
	}
	// While the zone is away the stream waits for it. A client that is refused waits for
	// longer with every attempt, gRPC up to two minutes, and so would be that much behind.
	zone, err := r.zone.NewStream(ctx, desc, method, grpc.WaitForReady(true), grpc.ForceCodecV2(bytesCodec{}), grpc.MaxCallRecvMsgSize(maxRelayed), grpc.MaxCallSendMsgSize(maxRelayed))
	if err != nil {
		return err
	}
	go func() {
		for {
			m := &message{}
			if err := client.RecvMsg(m); errors.Is(err, io.EOF) {
				_ = zone.CloseSend() // what the zone says of it ends the stream
				return
			} else if err != nil {
				cancel() // the client has gone
				return
			}
			if zone.SendMsg(m) != nil {
				return // RecvMsg says why
			}
		}
	}()
	for {
		m := &message{}
		if err := zone.RecvMsg(m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := client.SendMsg(m); err != nil {
			return err
		}
	}
}
