import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.hadoop.hdds.client.BlockID;
import org.apache.hadoop.hdds.client.ECReplicationConfig;
import org.apache.hadoop.hdds.client.ReplicationConfig;
import org.apache.hadoop.hdds.client.StandaloneReplicationConfig;
import org.apache.hadoop.hdds.conf.OzoneConfiguration;
import org.apache.hadoop.hdds.protocol.DatanodeDetails;
import org.apache.hadoop.hdds.protocol.datanode.proto.ContainerProtos;
import org.apache.hadoop.hdds.protocol.proto.HddsProtos;
import org.apache.hadoop.hdds.scm.ContainerClientMetrics;
import org.apache.hadoop.hdds.scm.OzoneClientConfig;
import org.apache.hadoop.hdds.scm.StreamBufferArgs;
import org.apache.hadoop.hdds.scm.XceiverClientManager;
import org.apache.hadoop.hdds.scm.XceiverClientSpi;
import org.apache.hadoop.hdds.scm.pipeline.Pipeline;
import org.apache.hadoop.hdds.scm.pipeline.PipelineID;
import org.apache.hadoop.hdds.scm.storage.BlockExtendedInputStream;
import org.apache.hadoop.hdds.scm.storage.BlockLocationInfo;
import org.apache.hadoop.hdds.scm.storage.BufferPool;
import org.apache.hadoop.hdds.scm.storage.ContainerProtocolCalls;
import org.apache.hadoop.hdds.scm.storage.ECBlockOutputStream;
import org.apache.hadoop.hdds.scm.storage.StreamBlockInputStream;
import org.apache.hadoop.io.ElasticByteBufferPool;
import org.apache.hadoop.ozone.client.io.BlockInputStreamFactoryImpl;
import org.apache.hadoop.ozone.container.ec.reconstruction.ECReconstructionCoordinator;
import org.apache.hadoop.ozone.container.ec.reconstruction.ECReconstructionMetrics;
import org.apache.ozone.erasurecode.rawcoder.RawErasureEncoder;
import org.apache.ozone.erasurecode.rawcoder.util.CodecUtil;
import org.apache.ratis.thirdparty.com.google.protobuf.ByteString;

/**
 * Ozone's own clients of datanodes, whoever these are. A peer is host:port:uuid, "-" for none; what is written and
 * read is what java.util.Random gives for a seed, so that a read says "equal" or where it differs.
 *
 *   read|stream CONTAINER BLOCK BYTES SEED PEER   one replicated block, by chunks or as a stream
 *   ecwrite CONTAINER BLOCK BYTES SEED PEER...    a block of rs-3-2-1024k, shard by shard, and close
 *   ecread CONTAINER BLOCK BYTES SEED PEER...
 *   rebuild CONTAINER INDEX TARGET PEER...        a shard from the others, by Ozone's coordinator
 */
final class OzoneClients implements AutoCloseable {
  private static final ECReplicationConfig CODING = new ECReplicationConfig("rs-3-2-1024k");
  private static final int CELL = 1024 * 1024;
  private final OzoneConfiguration conf;
  private final OzoneClientConfig client;
  private final XceiverClientManager clients;
  private final ExecutorService executor = Executors.newCachedThreadPool();

  OzoneClients(OzoneConfiguration conf) throws IOException {
    this.conf = conf;
    client = conf.getObject(OzoneClientConfig.class);
    client.setChecksumVerify(true);
    clients = new XceiverClientManager(conf);
  }

  static boolean knows(String word) {
    return List.of("read", "stream", "ecwrite", "ecread", "rebuild").contains(word);
  }

  String obey(String[] words) throws Exception {
    long container = Long.parseLong(words[1]);
    if (words[0].equals("rebuild")) {
      return rebuild(container, Integer.parseInt(words[2]), words);
    }
    BlockID block = new BlockID(container, Long.parseLong(words[2]));
    byte[] data = new byte[Integer.parseInt(words[3])];
    new Random(Long.parseLong(words[4])).nextBytes(data);
    List<DatanodeDetails> peers = new ArrayList<>();
    for (int at = 5; at < words.length; at++) {
      peers.add(words[at].equals("-") ? null : peer(words[at]));
    }
    switch (words[0]) {
    case "ecwrite":
      return write(block, data, peers);
    case "stream":
      try (StreamBlockInputStream in = new StreamBlockInputStream(block, data.length,
          pipeline(StandaloneReplicationConfig.getInstance(HddsProtos.ReplicationFactor.ONE), peers), null, clients,
          null, client)) {
        return compared(in, data);
      }
    default:
      ReplicationConfig config = words[0].equals("ecread") ? CODING
          : StandaloneReplicationConfig.getInstance(HddsProtos.ReplicationFactor.ONE);
      Pipeline pipeline = pipeline(config, peers);
      BlockLocationInfo place = new BlockLocationInfo.Builder().setBlockID(block).setLength(data.length)
          .setPipeline(pipeline).build();
      try (BlockExtendedInputStream in = new BlockInputStreamFactoryImpl(new ElasticByteBufferPool(), () -> executor)
          .create(config, place, pipeline, null, clients, one -> place, client)) {
        return compared(in, data);
      }
    }
  }

  private static DatanodeDetails peer(String text) {
    String[] parts = text.split(":");
    return DatanodeDetails.newBuilder().setUuid(UUID.fromString(parts[2])).setHostName("localhost")
        .setIpAddress(parts[0])
        .addPort(DatanodeDetails.newPort(DatanodeDetails.Port.Name.STANDALONE, Integer.parseInt(parts[1]))).build();
  }

  private static Pipeline pipeline(ReplicationConfig config, List<DatanodeDetails> peers) {
    Map<DatanodeDetails, Integer> indexes = new HashMap<>();
    List<DatanodeDetails> present = new ArrayList<>();
    for (int at = 0; at < peers.size(); at++) {
      if (peers.get(at) != null) {
        present.add(peers.get(at));
        indexes.put(peers.get(at), config == CODING ? at + 1 : 0);
      }
    }
    return Pipeline.newBuilder().setId(PipelineID.randomId()).setReplicationConfig(config)
        .setState(Pipeline.PipelineState.CLOSED).setNodes(present).setReplicaIndexes(indexes).build();
  }

  private static Pipeline alone(DatanodeDetails peer, int index) {
    return Pipeline.newBuilder().setId(PipelineID.randomId()).setReplicationConfig(CODING)
        .setState(Pipeline.PipelineState.OPEN).setNodes(List.of(peer)).setReplicaIndexes(Map.of(peer, index)).build();
  }

  private static String compared(BlockExtendedInputStream in, byte[] data) throws IOException {
    byte[] found = new byte[data.length];
    int end = 0;
    for (int count = 0; end < found.length && count >= 0; end += Math.max(count, 0)) {
      count = in.read(found, end, Math.min(found.length - end, 700_001));
    }
    int at = java.util.Arrays.mismatch(data, found);
    if (at >= 0 || end < data.length) {
      return "differs at " + at + " of " + end;
    }
    int middle = data.length / 2 + 1; // and from a place that is no border of anything
    in.seek(middle);
    return in.read() == (data[middle] & 0xff) ? "equal" : "differs after a seek";
  }

  private String write(BlockID block, byte[] data, List<DatanodeDetails> peers) throws Exception {
    List<ECBlockOutputStream> shards = new ArrayList<>();
    for (int at = 0; at < peers.size(); at++) {
      shards.add(new ECBlockOutputStream(block, clients, alone(peers.get(at), at + 1), BufferPool.empty(), client, null,
          ContainerClientMetrics.acquire(), StreamBufferArgs.getDefaultStreamBufferArgs(CODING, client),
          () -> executor));
    }
    RawErasureEncoder encoder = CodecUtil.createRawEncoderWithFallback(CODING);
    for (int at = 0; at < data.length; at += 3 * CELL) {
      writeStripe(shards, encoder, data, at);
    }
    for (ECBlockOutputStream shard : shards) {
      shard.executePutBlock(true, true, data.length);
      answered(shard.getCurrentPutBlkResponseFuture().get());
    }
    for (int at = 0; at < peers.size(); at++) {
      XceiverClientSpi one = clients.acquireClient(alone(peers.get(at), at + 1));
      ContainerProtocolCalls.closeContainer(one, block.getContainerID(), null);
      clients.releaseClient(one, false);
    }
    return "";
  }

  private static void writeStripe(List<ECBlockOutputStream> shards, RawErasureEncoder encoder, byte[] data, int at)
      throws Exception {
    int longest = Math.min(CELL, data.length - at);
    byte[][] cells = new byte[3][longest];
    byte[][] parity = new byte[2][longest];
    int[] lengths = new int[5];
    for (int index = 0; index < 3; index++) {
      int begin = Math.min(data.length, at + index * CELL);
      lengths[index] = Math.min(CELL, data.length - begin);
      System.arraycopy(data, begin, cells[index], 0, lengths[index]);
    }
    lengths[3] = longest;
    lengths[4] = longest;
    encoder.encode(cells, parity);
    for (int index = 0; index < 5; index++) {
      if (lengths[index] > 0) {
        byte[] cell = index < 3 ? cells[index] : parity[index - 3];
        answered(shards.get(index).write(ByteBuffer.wrap(cell, 0, lengths[index])).get());
      }
    }
    byte[] stripe = new byte[60];
    new Random(at).nextBytes(stripe);
    for (int index = 0; index < 5; index++) {
      if (lengths[index] > 0) {
        shards.get(index).executePutBlock(false, true, (long) data.length, ByteString.copyFrom(stripe));
        answered(shards.get(index).getCurrentPutBlkResponseFuture().get());
      }
    }
  }

  private static void answered(ContainerProtos.ContainerCommandResponseProto answer) throws IOException {
    ContainerProtocolCalls.validateContainerResponse(answer);
  }

  private String rebuild(long container, int index, String[] words) throws Exception {
    SortedMap<Integer, DatanodeDetails> sources = new TreeMap<>();
    for (int at = 4; at < words.length; at++) {
      if (!words[at].equals("-") && at - 3 != index) {
        sources.put(at - 3, peer(words[at]));
      }
    }
    SortedMap<Integer, DatanodeDetails> targets = new TreeMap<>(Map.of(index, peer(words[3])));
    ECReconstructionMetrics metrics = ECReconstructionMetrics.create();
    try (ECReconstructionCoordinator coordinator =
        new ECReconstructionCoordinator(conf, null, null, null, metrics, "interop")) {
      coordinator.reconstructECContainerGroup(container, CODING, sources, targets);
    } finally {
      metrics.unRegister();
    }
    return "";
  }

  @Override
  public void close() {
    clients.close();
    executor.shutdownNow();
  }
}
