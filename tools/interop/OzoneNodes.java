import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.UUID;
import org.apache.hadoop.hdds.client.BlockID;
import org.apache.hadoop.hdds.conf.OzoneConfiguration;
import org.apache.hadoop.hdds.protocol.DatanodeDetails;
import org.apache.hadoop.hdds.protocol.datanode.proto.ContainerProtos;
import org.apache.hadoop.hdds.protocol.datanode.proto.ContainerProtos.ContainerCommandRequestProto;
import org.apache.hadoop.hdds.protocol.datanode.proto.ContainerProtos.ContainerCommandResponseProto;
import org.apache.hadoop.hdds.security.SecurityConfig;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;
import org.apache.hadoop.ozone.common.Checksum;
import org.apache.hadoop.ozone.container.checksum.ContainerChecksumTreeManager;
import org.apache.hadoop.ozone.container.checksum.DNContainerOperationClient;
import org.apache.hadoop.ozone.container.common.helpers.BlockData;
import org.apache.hadoop.ozone.container.common.helpers.ContainerMetrics;
import org.apache.hadoop.ozone.container.common.impl.ContainerSet;
import org.apache.hadoop.ozone.container.common.impl.HddsDispatcher;
import org.apache.hadoop.ozone.container.common.interfaces.DBHandle;
import org.apache.hadoop.ozone.container.common.interfaces.Handler;
import org.apache.hadoop.ozone.container.common.interfaces.VolumeChoosingPolicy;
import org.apache.hadoop.ozone.container.common.statemachine.StateContext;
import org.apache.hadoop.ozone.container.common.transport.server.XceiverServerGrpc;
import org.apache.hadoop.ozone.container.common.transport.server.ratis.DispatcherContext;
import org.apache.hadoop.ozone.container.common.utils.DatanodeStoreCache;
import org.apache.hadoop.ozone.container.common.utils.StorageVolumeUtil;
import org.apache.hadoop.ozone.container.common.volume.HddsVolume;
import org.apache.hadoop.ozone.container.common.volume.MutableVolumeSet;
import org.apache.hadoop.ozone.container.common.volume.StorageVolume;
import org.apache.hadoop.ozone.container.common.volume.VolumeChoosingPolicyFactory;
import org.apache.hadoop.ozone.container.keyvalue.KeyValueContainer;
import org.apache.hadoop.ozone.container.keyvalue.KeyValueContainerData;
import org.apache.hadoop.ozone.container.keyvalue.KeyValueHandler;
import org.apache.hadoop.ozone.container.keyvalue.TarContainerPacker;
import org.apache.hadoop.ozone.container.keyvalue.helpers.BlockUtils;
import org.apache.hadoop.ozone.container.ozoneimpl.ContainerController;
import org.apache.hadoop.ozone.container.ozoneimpl.ContainerScannerConfiguration;
import org.apache.hadoop.ozone.container.ozoneimpl.MetadataScanResult;
import org.apache.hadoop.ozone.container.ozoneimpl.OnDemandContainerScanner;
import org.apache.hadoop.ozone.container.replication.AbstractReplicationTask;
import org.apache.hadoop.ozone.container.replication.ContainerImporter;
import org.apache.hadoop.ozone.container.replication.ContainerReplicator;
import org.apache.hadoop.ozone.container.replication.CopyContainerCompression;
import org.apache.hadoop.ozone.container.replication.DownloadAndImportReplicator;
import org.apache.hadoop.ozone.container.replication.GrpcContainerUploader;
import org.apache.hadoop.ozone.container.replication.OnDemandContainerReplicationSource;
import org.apache.hadoop.ozone.container.replication.PushReplicator;
import org.apache.hadoop.ozone.container.replication.ReplicationServer;
import org.apache.hadoop.ozone.container.replication.ReplicationTask;
import org.apache.hadoop.ozone.container.replication.SimpleContainerDownloader;
import org.apache.hadoop.ozone.protocol.commands.ReplicateContainerCommand;
import org.apache.ratis.thirdparty.com.google.protobuf.ByteString;
import org.mockito.Mockito;

/**
 * Datanodes of Ozone without SCM and OM, of Ozone's own classes: volumes, RocksDB, scanner, the service of
 * clients and that of replication. Led by lines on standard input, as OzoneDriver is.
 *
 *   create DN CONTAINER INDEX          write DN CONTAINER BLOCK BYTES CHUNK TYPE WINDOW SEED
 *   close|quasi|unhealthy|remove DN CONTAINER
 *   delete DN CONTAINER BLOCK...       as its own service deletes: the tree first, then rows and files
 *   doom DN CONTAINER TRANSACTION BLOCK...   a delete that is ordered and not carried out yet
 *   scan DN CONTAINER                  its own scan, waited for
 *   state DN CONTAINER                 state, root, BCSID, index, bytes and blocks
 *   reconcile DN CONTAINER PEER...     a peer is host:port:uuid
 *   push DN CONTAINER TARGET [COMPRESSION]     pull DN CONTAINER SOURCE [COMPRESSION]
 *   export DN CONTAINER FILE [COMPRESSION]
 *   read, stream, ecwrite, ecread, rebuild     Ozone's clients (OzoneClients)
 *   datanodes                          dn,uuid,port,replication port,directory of each
 *   cpu                                nanoseconds of this process
 */
public final class OzoneNodes {
  private static final String CLUSTER = "CID-6a4dbe9c-5f0e-4b4e-9d6a-2d1f3a7c0001";
  private final List<Node> nodes = new ArrayList<>();
  private long logIndex = 100;

  private static final class Node {
    private OzoneConfiguration conf;
    private DatanodeDetails details;
    private ContainerSet set;
    private MutableVolumeSet volumes;
    private KeyValueHandler handler;
    private HddsDispatcher dispatcher;
    private ContainerController controller;
    private ContainerImporter importer;
    private OnDemandContainerScanner scanner;
  }

  public static void main(String[] arguments) throws Exception {
    DefaultMetricsSystem.setMiniClusterMode(true);
    DatanodeStoreCache.setMiniClusterMode();
    OzoneNodes driver = new OzoneNodes();
    for (int index = 0; index < Integer.parseInt(arguments[1]); index++) {
      driver.nodes.add(begin(Paths.get(arguments[0]), index));
    }
    say("ready");
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      try {
        say("ok " + driver.obey(line.trim().split(" ")));
      } catch (Throwable error) {
        error.printStackTrace();
        say("error " + error.toString().replace('\n', ' '));
      }
    }
    System.exit(0);
  }

  private static void say(String text) {
    System.out.println("interop: " + text);
    System.out.flush();
  }

  private static Node begin(Path place, int index) throws Exception {
    Node node = new Node();
    OzoneConfiguration conf = new OzoneConfiguration();
    node.conf = conf;
    conf.set("hdds.datanode.dir", place.resolve("dn" + index + "/data").toString());
    conf.set("ozone.metadata.dirs", place.resolve("dn" + index + "/meta").toString());
    conf.setBoolean("hdds.container.ipc.random.port", true);
    conf.set("hdds.datanode.volume.min.free.space", "1MB");
    conf.set("hdds.container.scrub.on.demand.volume.bytes.per.second", "1073741824");
    node.details = DatanodeDetails.newBuilder().setUuid(new UUID(0x1122334455667788L, index)).setHostName("localhost")
        .setIpAddress("127.0.0.1").addPort(DatanodeDetails.newStandalonePort(0)).build();
    node.set = ContainerSet.newReadOnlyContainerSet(1000);
    String uuid = node.details.getUuidString();
    node.volumes = new MutableVolumeSet(uuid, CLUSTER, conf, null, StorageVolume.VolumeType.DATA_VOLUME, null);
    for (HddsVolume volume : StorageVolumeUtil.getHddsVolumesList(node.volumes.getVolumesList())) {
      volume.format(CLUSTER);
      StorageVolumeUtil.checkVolume(volume, CLUSTER, CLUSTER, conf, null, null);
    }
    node.volumes.startAllVolume();
    ContainerMetrics metrics = ContainerMetrics.create(conf);
    node.handler = new KeyValueHandler(conf, uuid, node.set, node.volumes, metrics, container -> { },
        new ContainerChecksumTreeManager(conf));
    node.handler.setClusterID(CLUSTER);
    Map<ContainerProtos.ContainerType, Handler> handlers =
        Collections.singletonMap(ContainerProtos.ContainerType.KeyValueContainer, node.handler);
    node.controller = new ContainerController(node.set, handlers);
    node.scanner = new OnDemandContainerScanner(conf.getObject(ContainerScannerConfiguration.class), node.controller);
    node.set.registerOnDemandScanner(node.scanner);
    StateContext context = Mockito.mock(StateContext.class, Mockito.RETURNS_DEEP_STUBS);
    node.dispatcher = new HddsDispatcher(conf, node.set, node.volumes, handlers, context, metrics, null);
    node.dispatcher.setClusterId(CLUSTER);
    new XceiverServerGrpc(node.details, conf, node.dispatcher, null).start();
    VolumeChoosingPolicy policy = VolumeChoosingPolicyFactory.getPolicy(conf);
    node.importer = new ContainerImporter(conf, node.set, node.controller, node.volumes, policy);
    ReplicationServer.ReplicationConfig replication = conf.getObject(ReplicationServer.ReplicationConfig.class);
    ReplicationServer server = new ReplicationServer(node.controller, replication.setPort(0), new SecurityConfig(conf),
        null, node.importer, "dn" + index);
    server.start();
    node.details.setPort(DatanodeDetails.Port.Name.REPLICATION, server.getPort());
    return node;
  }

  private String obey(String[] words) throws Exception {
    if (words[0].equals("datanodes")) {
      List<String> found = new ArrayList<>();
      for (Node node : nodes) {
        found.add(nodes.indexOf(node) + "," + node.details.getUuidString() + ","
            + node.details.getStandalonePort().getValue() + ","
            + node.details.getPort(DatanodeDetails.Port.Name.REPLICATION).getValue() + ","
            + node.conf.get("hdds.datanode.dir"));
      }
      return String.join(" ", found);
    }
    if (words[0].equals("cpu")) {
      return String.valueOf(((com.sun.management.OperatingSystemMXBean)
          java.lang.management.ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime());
    }
    if (OzoneClients.knows(words[0])) {
      try (OzoneClients clients = new OzoneClients(nodes.get(0).conf)) {
        return clients.obey(words);
      }
    }
    Node node = nodes.get(Integer.parseInt(words[1]));
    long id = Long.parseLong(words[2]);
    switch (words[0]) {
    case "create":
      return create(node, id, Integer.parseInt(words[3]));
    case "write":
      return write(node, id, words);
    case "close":
      node.controller.markContainerForClose(id);
      node.controller.closeContainer(id);
      return state(node, id);
    case "quasi":
      node.controller.markContainerForClose(id);
      node.controller.quasiCloseContainer(id, "interop");
      return state(node, id);
    case "unhealthy":
      node.controller.markContainerUnhealthy(id, MetadataScanResult.deleted());
      return state(node, id);
    case "remove":
      node.controller.deleteContainer(id, true);
      return "";
    case "delete":
      return delete(node, id, numbers(words, 3));
    case "doom":
      return doom(node, id, Long.parseLong(words[3]), numbers(words, 4));
    case "scan":
      var begun = node.scanner.scanContainerWithoutGap(node.set.getContainer(id), "interop");
      if (begun.isPresent()) {
        begun.get().get();
      }
      return state(node, id);
    case "state":
      return state(node, id);
    case "reconcile": {
      Set<DatanodeDetails> peers = new HashSet<>();
      for (int at = 3; at < words.length; at++) {
        peers.add(peer(words[at], DatanodeDetails.Port.Name.STANDALONE));
      }
      node.handler.reconcileContainer(new DNContainerOperationClient(node.conf, null, null),
          node.set.getContainer(id), peers);
      return state(node, id);
    }
    case "push":
    case "pull":
      return replicate(node, id, words);
    case "export":
      try (OutputStream out = Files.newOutputStream(Paths.get(words[3]))) {
        node.controller.exportContainer(ContainerProtos.ContainerType.KeyValueContainer, id, out,
            new TarContainerPacker(compression(words, 4)));
      }
      return "";
    default:
      throw new IllegalArgumentException(words[0]);
    }
  }

  private static List<Long> numbers(String[] words, int from) {
    List<Long> found = new ArrayList<>();
    for (int at = from; at < words.length; at++) {
      found.add(Long.parseLong(words[at]));
    }
    return found;
  }

  private static CopyContainerCompression compression(String[] words, int at) {
    return CopyContainerCompression.valueOf(words.length > at ? words[at] : "NO_COMPRESSION");
  }

  private static DatanodeDetails peer(String text, DatanodeDetails.Port.Name name) {
    String[] parts = text.split(":");
    return DatanodeDetails.newBuilder().setUuid(UUID.fromString(parts[2])).setHostName("localhost")
        .setIpAddress(parts[0]).addPort(DatanodeDetails.newPort(name, Integer.parseInt(parts[1]))).build();
  }

  private ContainerCommandRequestProto.Builder request(Node node, long id, ContainerProtos.Type type) {
    return ContainerCommandRequestProto.newBuilder().setCmdType(type).setContainerID(id)
        .setDatanodeUuid(node.details.getUuidString());
  }

  private void dispatch(Node node, ContainerCommandRequestProto request) {
    DispatcherContext context = DispatcherContext.newBuilder(DispatcherContext.Op.APPLY_TRANSACTION)
        .setStage(DispatcherContext.WriteChunkStage.COMBINED).setTerm(1).setLogIndex(logIndex++)
        .setContainer2BCSIDMap(new HashMap<>(Map.of(request.getContainerID(), 0L))).build();
    ContainerCommandResponseProto response = node.dispatcher.dispatch(request, context);
    if (response.getResult() != ContainerProtos.Result.SUCCESS) {
      throw new IllegalStateException(response.getResult() + ": " + response.getMessage());
    }
  }

  private String create(Node node, long id, int index) {
    dispatch(node, request(node, id, ContainerProtos.Type.CreateContainer)
        .setCreateContainer(ContainerProtos.CreateContainerRequestProto.newBuilder().setReplicaIndex(index)
            .setContainerType(ContainerProtos.ContainerType.KeyValueContainer)).build());
    return "";
  }

  private String write(Node node, long id, String[] words) throws Exception {
    byte[] data = new byte[Integer.parseInt(words[4])];
    new Random(Long.parseLong(words[8])).nextBytes(data);
    int index = node.set.getContainer(id).getContainerData().getReplicaIndex();
    ContainerProtos.DatanodeBlockID block = ContainerProtos.DatanodeBlockID.newBuilder().setContainerID(id)
        .setLocalID(Long.parseLong(words[3])).setReplicaIndex(index).build();
    int chunkBytes = Integer.parseInt(words[5]);
    Checksum checksum = new Checksum(ContainerProtos.ChecksumType.valueOf(words[6]), Integer.parseInt(words[7]));
    ContainerProtos.BlockData.Builder row = ContainerProtos.BlockData.newBuilder().setBlockID(block)
        .addMetadata(ContainerProtos.KeyValue.newBuilder().setKey("TYPE").setValue("KEY"))
        .setSize(data.length);
    if (index > 0) {
      row.addMetadata(ContainerProtos.KeyValue.newBuilder().setKey("blockGroupLen").setValue("" + 3 * data.length));
    }
    for (int at = 0; at < data.length; at += chunkBytes) {
      byte[] piece = java.util.Arrays.copyOfRange(data, at, Math.min(data.length, at + chunkBytes));
      ContainerProtos.ChunkInfo.Builder chunk = ContainerProtos.ChunkInfo.newBuilder()
          .setChunkName(words[3] + "_chunk_" + (at / chunkBytes + 1)).setOffset(at).setLen(piece.length)
          .setChecksumData(checksum.computeChecksum(piece).getProtoBufMessage());
      if (index > 0) {
        byte[] stripe = new byte[20 * (1 + piece.length / Integer.parseInt(words[7]))];
        new Random(at).nextBytes(stripe);
        chunk.setStripeChecksum(ByteString.copyFrom(stripe));
      }
      dispatch(node, request(node, id, ContainerProtos.Type.WriteChunk)
          .setWriteChunk(ContainerProtos.WriteChunkRequestProto.newBuilder().setBlockID(block).setChunkData(chunk)
              .setData(ByteString.copyFrom(piece))).build());
      row.addChunks(chunk);
    }
    dispatch(node, request(node, id, ContainerProtos.Type.PutBlock)
        .setPutBlock(ContainerProtos.PutBlockRequestProto.newBuilder().setBlockData(row).setEof(true)).build());
    return "";
  }

  private static String state(Node node, long id) {
    if (node.set.getContainer(id) == null) {
      return "ABSENT";
    }
    KeyValueContainerData data = (KeyValueContainerData) node.set.getContainer(id).getContainerData();
    return data.getState() + " " + Long.toHexString(data.getDataChecksum()) + " " + data.getBlockCommitSequenceId()
        + " " + data.getReplicaIndex() + " " + data.getBytesUsed() + " " + data.getBlockCount();
  }

  private static String delete(Node node, long id, List<Long> ids) throws Exception {
    KeyValueContainer container = (KeyValueContainer) node.set.getContainer(id);
    List<BlockData> gone = new ArrayList<>();
    for (long local : ids) {
      gone.add(node.handler.getBlockManager().getBlock(container, new BlockID(id, local)));
    }
    node.handler.getChecksumManager().addDeletedBlocks(container.getContainerData(), gone);
    for (BlockData block : gone) {
      node.handler.deleteBlock(container, block);
      try (DBHandle db = BlockUtils.getDB(container.getContainerData(), node.conf)) {
        db.getStore().getBlockDataTable().delete(container.getContainerData().getBlockKey(block.getLocalID()));
      }
    }
    return state(node, id);
  }

  private static String doom(Node node, long id, long transaction, List<Long> ids) throws Exception {
    KeyValueContainerData data = (KeyValueContainerData) node.set.getContainer(id).getContainerData();
    var order = org.apache.hadoop.hdds.protocol.proto.StorageContainerDatanodeProtocolProtos.DeletedBlocksTransaction
        .newBuilder().setTxID(transaction).setContainerID(id).addAllLocalID(ids).setCount(0).build();
    try (DBHandle db = BlockUtils.getDB(data, node.conf)) {
      ((org.apache.hadoop.ozone.container.metadata.DatanodeStoreSchemaThreeImpl) db.getStore())
          .getDeleteTransactionTable().put(data.getDeleteTxnKey(transaction), order);
    }
    return "";
  }

  private static String replicate(Node node, long id, String[] words) throws Exception {
    DatanodeDetails other = peer(words[3], DatanodeDetails.Port.Name.REPLICATION);
    OzoneConfiguration conf = new OzoneConfiguration(node.conf);
    compression(words, 4).setOn(conf);
    ContainerReplicator replicator;
    ReplicateContainerCommand command;
    if (words[0].equals("push")) {
      replicator = new PushReplicator(conf, new OnDemandContainerReplicationSource(node.controller),
          new GrpcContainerUploader(conf, null, node.controller));
      command = ReplicateContainerCommand.toTarget(id, other);
    } else {
      replicator = new DownloadAndImportReplicator(conf, node.set, node.importer,
          new SimpleContainerDownloader(conf, null));
      command = ReplicateContainerCommand.fromSources(id, Collections.singletonList(other));
    }
    ReplicationTask task = new ReplicationTask(command, replicator);
    replicator.replicate(task);
    if (task.getStatus() != AbstractReplicationTask.Status.DONE) {
      throw new IllegalStateException(String.valueOf(task.getStatus()));
    }
    return task.getTransferredBytes() + "";
  }
}
