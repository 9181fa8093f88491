// A peer in another language: it reads a container off an agent by nothing but proto/ and
// docs/WIRE.md, checks what it gets against what was promised, and prints JSON.
//
//	peer_go [-certificate FILE -key FILE -ca FILE] ADDRESS CONTAINER
//
// Exit code 0 if every window and every fold is right, else 1; 2 if a call fails.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "suturepeer/v1"
)

const (
	callTimeout     = 60 * time.Second
	messageBytesMax = 33 << 20 // docs/WIRE.md, Limits
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Chunk is one chunk as it was read, and whether all of it is what was promised.
type Chunk struct {
	Offset      uint64   `json:"offset"`
	Length      uint64   `json:"length"`
	Checksum    string   `json:"checksum"` // its leaf in the tree, in hexadecimal
	IsHealthy   bool     `json:"is_healthy"`
	SHA256      string   `json:"sha256"`
	WindowCount int      `json:"window_count"`
	BadWindows  []uint64 `json:"bad_windows"` // by number
}

// Block is one live block, its checksum in the tree, and its bytes' own.
type Block struct {
	LocalID  uint64  `json:"local_id"`
	Checksum string  `json:"checksum"`
	SHA256   string  `json:"sha256"` // of all its chunks, one after the other
	Chunks   []Chunk `json:"chunks"`
}

// Answer is what is printed.
type Answer struct {
	ContainerID uint64   `json:"container_id"`
	State       string   `json:"state"`
	Algorithm   string   `json:"algorithm"`
	Root        string   `json:"root"`
	Blocks      []Block  `json:"blocks"`
	Faults      []string `json:"faults"`
	Refusal     Refusal  `json:"refusal"` // of a container that nobody has
}

// Refusal is an error as docs/WIRE.md has it.
type Refusal struct {
	Status string `json:"status"`
	Domain string `json:"domain"`
	Reason string `json:"reason"`
}

func main() {
	certificate := flag.String("certificate", "", "our certificate, PEM")
	key := flag.String("key", "", "its key")
	ca := flag.String("ca", "", "whom we believe")
	flag.Parse()
	answer, err := run(*certificate, *key, *ca, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		panic(err)
	}
	if len(answer.Faults) > 0 {
		os.Exit(1)
	}
}

func run(certificate, key, ca string, words []string) (*Answer, error) {
	if len(words) != 2 {
		return nil, errors.New("usage: peer_go [flags] ADDRESS CONTAINER")
	}
	containerID, err := strconv.ParseUint(words[1], 10, 63)
	if err != nil {
		return nil, err
	}
	security, err := credentialsOf(certificate, key, ca)
	if err != nil {
		return nil, err
	}
	limits := grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax))
	connection, err := grpc.NewClient(words[0], grpc.WithTransportCredentials(security), limits)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return read(ctx, pb.NewDatanodeClient(connection), containerID)
}

func credentialsOf(certificate, key, ca string) (credentials.TransportCredentials, error) {
	if certificate == "" {
		return insecure.NewCredentials(), nil
	}
	own, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	believed := x509.NewCertPool()
	if !believed.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s has no certificate", ca)
	}
	return credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{own},
		RootCAs:      believed,
		MinVersion:   tls.VersionTLS12,
	}), nil
}

func read(ctx context.Context, datanode pb.DatanodeClient, containerID uint64) (*Answer, error) {
	described, err := datanode.GetContainer(ctx, &pb.GetContainerRequest{ContainerId: containerID})
	if err != nil {
		return nil, err
	}
	answer := &Answer{
		ContainerID: containerID,
		State:       described.Replica.State.String(),
		Blocks:      []Block{},
		Faults:      []string{},
	}
	tree, err := hashes(ctx, datanode, containerID)
	if err != nil {
		return nil, err
	}
	summary := tree.Summary
	answer.Algorithm, answer.Root = summary.Algorithm.String(), hexadecimal(summary.Root)
	if described.Replica.Tree.GetRoot() != summary.Root {
		answer.Faults = append(answer.Faults, "the report names another root than the tree")
	}
	folds := summary.Algorithm == pb.TreeAlgorithm_TREE_CRC32C
	if folds && fold(tree.BlockChecksums...) != summary.Root {
		answer.Faults = append(answer.Faults, "the root is not the fold of the blocks")
	}
	next := 0
	for i, localID := range tree.BlockIds {
		first := next
		next += int(tree.BlockChunkCounts[i])
		if tree.BlockDeleted[i] {
			continue
		}
		leaves := tree.ChunkChecksums[first:next]
		if folds && fold(append([]uint64{localID}, leaves...)...) != tree.BlockChecksums[i] {
			answer.Faults = append(answer.Faults, fmt.Sprintf("block %d is not the fold of its chunks", localID))
		}
		block, err := blockOf(ctx, datanode, containerID, tree, i, first, folds, answer)
		if err != nil {
			return nil, err
		}
		answer.Blocks = append(answer.Blocks, *block)
	}
	answer.Refusal = refusal(ctx, datanode)
	return answer, nil
}

// hashes asks for the whole tree; its pages become one.
func hashes(ctx context.Context, datanode pb.DatanodeClient, containerID uint64) (*pb.HashesPage, error) {
	request := &pb.GetContainerHashesRequest{ContainerId: containerID, Level: pb.HashesLevel_CHUNKS}
	stream, err := datanode.GetContainerHashes(ctx, request)
	if err != nil {
		return nil, err
	}
	tree := &pb.HashesPage{}
	for {
		page, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if page.Summary != nil {
			tree.Summary = page.Summary
		}
		tree.BlockIds = append(tree.BlockIds, page.BlockIds...)
		tree.BlockChecksums = append(tree.BlockChecksums, page.BlockChecksums...)
		tree.BlockDeleted = append(tree.BlockDeleted, page.BlockDeleted...)
		tree.BlockChunkCounts = append(tree.BlockChunkCounts, page.BlockChunkCounts...)
		tree.ChunkOffsets = append(tree.ChunkOffsets, page.ChunkOffsets...)
		tree.ChunkLengths = append(tree.ChunkLengths, page.ChunkLengths...)
		tree.ChunkChecksums = append(tree.ChunkChecksums, page.ChunkChecksums...)
		tree.ChunkHealthy = append(tree.ChunkHealthy, page.ChunkHealthy...)
	}
	if tree.Summary == nil {
		return nil, errors.New("the first page of a tree has no summary")
	}
	return tree, nil
}

func blockOf(
	ctx context.Context,
	datanode pb.DatanodeClient,
	containerID uint64,
	tree *pb.HashesPage,
	place, first int,
	folds bool,
	answer *Answer,
) (*Block, error) {
	blockID := &pb.BlockId{ContainerId: containerID, LocalId: tree.BlockIds[place]}
	whole := sha256.New()
	block := &Block{LocalID: blockID.LocalId, Checksum: hexadecimal(tree.BlockChecksums[place])}
	for i := first; i < first+int(tree.BlockChunkCounts[place]); i++ {
		info, data, err := chunkOf(ctx, datanode, blockID, tree.ChunkOffsets[i])
		if err != nil {
			return nil, err
		}
		where := fmt.Sprintf("block %d, offset %d", blockID.LocalId, tree.ChunkOffsets[i])
		if uint64(len(data)) != info.Length || info.Length != uint64(tree.ChunkLengths[i]) {
			return nil, fmt.Errorf("%s: %d bytes of %d", where, len(data), info.Length)
		}
		bad, count, err := badWindows(info.Checksum, data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		for _, window := range bad {
			answer.Faults = append(answer.Faults, fmt.Sprintf("%s: window %d is damaged", where, window))
		}
		if folds && uint64(crc32.Checksum(info.Checksum.Checksums, castagnoli)) != tree.ChunkChecksums[i] {
			answer.Faults = append(answer.Faults, where+": the leaf is not the fold of the windows")
		}
		whole.Write(data)
		own := sha256.Sum256(data)
		block.Chunks = append(block.Chunks, Chunk{
			Offset:      info.Offset,
			Length:      info.Length,
			Checksum:    hexadecimal(tree.ChunkChecksums[i]),
			IsHealthy:   tree.ChunkHealthy[i],
			SHA256:      hex.EncodeToString(own[:]),
			WindowCount: count,
			BadWindows:  bad,
		})
	}
	block.SHA256 = hex.EncodeToString(whole.Sum(nil))
	return block, nil
}

// chunkOf reads one chunk: what was written with it, then its data in pieces.
func chunkOf(
	ctx context.Context, datanode pb.DatanodeClient, blockID *pb.BlockId, offset uint64,
) (*pb.ChunkInfo, []byte, error) {
	stream, err := datanode.ReadChunk(ctx, &pb.ReadChunkRequest{BlockId: blockID, Offset: offset})
	if err != nil {
		return nil, nil, err
	}
	var info *pb.ChunkInfo
	var data []byte
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, nil, err
		}
		if piece.Chunk != nil {
			info = piece.Chunk
		}
		data = append(data, piece.Data...)
	}
	if info == nil || info.Checksum == nil {
		return nil, nil, errors.New("the agent does not describe the chunk")
	}
	return info, data, nil
}

// badWindows computes the checksum of each window, and returns those that are not as promised.
func badWindows(promised *pb.ChecksumData, data []byte) ([]uint64, int, error) {
	table := castagnoli
	switch promised.Type {
	case pb.ChecksumType_CRC32C:
	case pb.ChecksumType_CRC32:
		table = crc32.IEEETable
	default:
		return nil, 0, fmt.Errorf("a checksum of type %s", promised.Type)
	}
	size := int(promised.BytesPerChecksum)
	if size < 1 {
		return nil, 0, errors.New("windows of no bytes")
	}
	count := (len(data) + size - 1) / size
	if len(promised.Checksums) != 4*count {
		return nil, 0, fmt.Errorf("%d bytes of checksums for %d windows", len(promised.Checksums), count)
	}
	bad := []uint64{}
	for i := 0; i < count; i++ {
		window := data[i*size : min((i+1)*size, len(data))]
		if crc32.Checksum(window, table) != binary.BigEndian.Uint32(promised.Checksums[4*i:]) {
			bad = append(bad, uint64(i))
		}
	}
	return bad, count, nil
}

// fold is the tree's own, of algorithm crc32c: over big-endian words of 8 bytes.
func fold(words ...uint64) uint64 {
	octets := make([]byte, 0, 8*len(words))
	for _, word := range words {
		octets = binary.BigEndian.AppendUint64(octets, word)
	}
	return uint64(crc32.Checksum(octets, castagnoli))
}

// refusal asks for what nobody has, and reads the error.
func refusal(ctx context.Context, datanode pb.DatanodeClient) Refusal {
	_, err := datanode.GetContainer(ctx, &pb.GetContainerRequest{ContainerId: 1<<62 + 1})
	told := status.Convert(err)
	found := Refusal{Status: told.Code().String()}
	for _, detail := range told.Details() {
		if info, is := detail.(*errdetails.ErrorInfo); is {
			found.Domain, found.Reason = info.Domain, info.Reason
		}
	}
	return found
}

func hexadecimal(value uint64) string { return fmt.Sprintf("%016x", value) }
