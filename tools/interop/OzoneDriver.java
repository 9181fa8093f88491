import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Random;
import org.apache.hadoop.hdds.client.ECReplicationConfig;
import org.apache.hadoop.hdds.client.RatisReplicationConfig;
import org.apache.hadoop.hdds.conf.OzoneConfiguration;
import org.apache.hadoop.hdds.protocol.DatanodeDetails;
import org.apache.hadoop.hdds.protocol.DatanodeID;
import org.apache.hadoop.hdds.protocol.proto.HddsProtos.LifeCycleState;
import org.apache.hadoop.hdds.protocol.proto.HddsProtos.ReplicationFactor;
import org.apache.hadoop.hdds.protocol.proto.HddsProtos.ReplicationType;
import org.apache.hadoop.hdds.scm.container.ContainerInfo;
import org.apache.hadoop.hdds.scm.server.StorageContainerManager;
import org.apache.hadoop.ozone.HddsDatanodeService;
import org.apache.hadoop.ozone.MiniOzoneCluster;
import org.apache.hadoop.ozone.client.OzoneBucket;
import org.apache.hadoop.ozone.client.OzoneClientFactory;
import org.apache.hadoop.ozone.client.OzoneKeyLocation;
import org.apache.hadoop.ozone.client.io.OzoneOutputStream;
import org.apache.hadoop.ozone.container.common.impl.ContainerData;
import org.apache.hadoop.ozone.container.common.interfaces.Container;
import org.apache.hadoop.ozone.protocol.commands.ReplicateContainerCommand;

/**
 * Datanodes of Ozone (three), its SCM and its OM in one process, led by lines on standard input. Each is
 * answered by one line on standard output that begins with "interop: ".
 *
 *   write KEY BYTES SEED    a key of random bytes; answers container:block of each of its blocks
 *   sync KEY BYTES SEED     the same, synced twice and left open
 *   coded KEY BYTES SEED    the same, erasure-coded: rs-3-2-1024k
 *   read KEY BYTES SEED     whether the key has these bytes: equal, or differs
 *   delete KEY              close                 closes every open container
 *   scan DN CONTAINER       Ozone's own scan, now
 *   stop DN / start DN      replicas              dn,container,state,root of each replica
 *   datanodes               dn,uuid,port,directory of each
 *   scm                     its ports for datanodes and for clients
 *   restart-scm             the SCM again, with the state that it has
 *   drop DN CONTAINER       its replica goes
 *   push CONTAINER INDEX FROM TO   the SCM orders a datanode (by uuid) to send its replica to another
 *   pull CONTAINER INDEX FROM TO   the SCM orders the other one to fetch it
 *   manage                  a round of the replication manager, now
 *   undeleted               transactions of deletes that not all datanodes have acknowledged
 *   decommission HOST:PORT / recommission HOST:PORT
 *
 * Started as `OzoneDriver led`, the replication manager acts when it is told to only. A number behind it is how
 * many datanodes there are.
 */
public final class OzoneDriver {
  private static final ECReplicationConfig CODING = new ECReplicationConfig("rs-3-2-1024k");
  private final int count;
  private final OzoneConfiguration conf = new OzoneConfiguration();
  private final List<OzoneOutputStream> open = new ArrayList<>();
  private MiniOzoneCluster cluster;
  private OzoneBucket bucket;

  private OzoneDriver(int count) {
    this.count = count;
  }

  public static void main(String[] arguments) throws Exception {
    OzoneDriver driver = new OzoneDriver(arguments.length > 1 ? Integer.parseInt(arguments[1]) : 3);
    driver.begin(arguments.length > 0 && arguments[0].equals("led"));
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

  private void begin(boolean led) throws Exception {
    if (led) {  // the replication manager acts when it is told to, and then at once
      conf.set("hdds.scm.replication.thread.interval", "1h");
      conf.set("hdds.scm.replication.over.replicated.interval", "1s");
      conf.set("hdds.scm.replication.under.replicated.interval", "1s");
      conf.set("ozone.scm.datanode.admin.monitor.interval", "1s");
    }
    for (String name : new String[] {"hdds.heartbeat.interval", "hdds.node.report.interval",
        "hdds.container.report.interval", "hdds.pipeline.report.interval",
        "ozone.scm.close.container.wait.duration", "ozone.block.deleting.service.interval",
        "hdds.scm.block.deleting.service.interval", "ozone.scm.heartbeat.thread.interval"}) {
      conf.set(name, "1s");
    }
    conf.set("ozone.scm.stale.node.interval", "90s");
    conf.set("ozone.scm.dead.node.interval", "300s");
    conf.set("ozone.scm.chunk.size", "1MB");
    conf.set("ozone.scm.block.size", "8MB");
    conf.set("ozone.scm.container.size", "64MB");
    conf.set("ozone.client.stream.buffer.size", "1MB");
    conf.set("ozone.client.stream.buffer.flush.size", "4MB");
    conf.set("ozone.client.stream.buffer.max.size", "8MB");
    for (String name : new String[] {"ozone.fs.hsync.enabled", "ozone.hbase.enhancements.allowed",
        "ozone.client.hbase.enhancements.allowed", "ozone.client.incremental.chunk.list"}) {
      conf.setBoolean(name, true);
    }
    cluster = MiniOzoneCluster.newBuilder(conf).setNumDatanodes(count).build();
    cluster.waitForClusterToBeReady();
    cluster.waitForPipelineTobeReady(ReplicationFactor.THREE, 180_000);
    var store = OzoneClientFactory.getRpcClient(cluster.getConf()).getObjectStore();
    store.createVolume("interop");
    store.getVolume("interop").createBucket("keys");
    bucket = store.getVolume("interop").getBucket("keys");
  }

  private String obey(String[] words) throws Exception {
    switch (words[0]) {
    case "write":
      try (OzoneOutputStream out = created(words)) {
        out.write(bytes(words));
      }
      return blocks(words[1]);
    case "sync": {
      byte[] data = bytes(words);
      OzoneOutputStream out = created(words);
      open.add(out);
      out.write(data, 0, data.length / 2);
      out.hsync();
      out.write(data, data.length / 2, data.length - data.length / 2);
      out.hsync();
      return blocks(words[1]);
    }
    case "coded":
      try (OzoneOutputStream out = bucket.createKey(words[1], Integer.parseInt(words[2]), CODING, new HashMap<>())) {
        out.write(bytes(words));
      }
      return blocks(words[1]);
    case "read":
      try (InputStream in = bucket.readKey(words[1])) {
        return Arrays.equals(in.readAllBytes(), bytes(words)) ? "equal" : "differs";
      }
    case "delete":
      bucket.deleteKey(words[1]);
      return "";
    case "close":
      for (ContainerInfo one : cluster.getStorageContainerManager().getContainerManager().getContainers()) {
        // The SCM counts the keys of a coded container as the replica does that told of it longest ago.
        boolean hasKeys = one.getReplicationType() == ReplicationType.EC || one.getNumberOfKeys() > 0;
        if (one.getState() == LifeCycleState.OPEN && hasKeys) {
          cluster.getStorageContainerLocationClient().closeContainer(one.getContainerID());
        }
      }
      return "";
    case "scan":
      datanode(words[1]).getDatanodeStateMachine().getContainer().getContainerSet()
          .scanContainerWithoutGap(Long.parseLong(words[2]), "interop");
      return "";
    case "stop":
      cluster.shutdownHddsDatanode(Integer.parseInt(words[1]));
      return "";
    case "start":
      cluster.restartHddsDatanode(Integer.parseInt(words[1]), false);
      return "";
    case "replicas":
      return replicas();
    case "datanodes":
      return datanodes();
    case "scm": {
      StorageContainerManager scm = cluster.getStorageContainerManager();
      return scm.getDatanodeRpcAddress().getPort() + " " + scm.getClientRpcAddress().getPort();
    }
    case "drop":
      datanode(words[1]).getDatanodeStateMachine().getContainer().getController()
          .deleteContainer(Long.parseLong(words[2]), true);
      return "";
    case "push":
    case "pull":
      order(words[0].equals("push"), Long.parseLong(words[1]), Integer.parseInt(words[2]), words[3], words[4]);
      return "";
    case "manage":
      cluster.getStorageContainerManager().getReplicationManager().processAll();
      return "";
    case "restart-scm":
      cluster.restartStorageContainerManager(false);
      return "";
    case "decommission":
      return words[0] + cluster.getStorageContainerLocationClient().decommissionNodes(List.of(words[1]), true);
    case "recommission":
      return words[0] + cluster.getStorageContainerLocationClient().recommissionNodes(List.of(words[1]));
    case "undeleted":
      return String.valueOf(cluster.getStorageContainerManager().getScmBlockManager().getDeletedBlockLog()
          .getNumOfValidTransactions());
    default:
      throw new IllegalArgumentException(words[0]);
    }
  }

  private void order(boolean push, long container, int index, String from, String to) throws IOException {
    StorageContainerManager scm = cluster.getStorageContainerManager();
    DatanodeDetails source = scm.getScmNodeManager().getNode(DatanodeID.fromUuidString(from));
    DatanodeDetails target = scm.getScmNodeManager().getNode(DatanodeID.fromUuidString(to));
    ReplicateContainerCommand command = push ? ReplicateContainerCommand.toTarget(container, target)
        : ReplicateContainerCommand.fromSources(container, List.of(source));
    command.setReplicaIndex(index);
    command.setTerm(scm.getScmContext().getTermOfLeader());
    scm.getScmNodeManager().addDatanodeCommand((push ? source : target).getID(), command);
  }

  private HddsDatanodeService datanode(String index) {
    return cluster.getHddsDatanodes().get(Integer.parseInt(index));
  }

  private OzoneOutputStream created(String[] words) throws IOException {
    return bucket.createKey(words[1], Integer.parseInt(words[2]),
        RatisReplicationConfig.getInstance(ReplicationFactor.THREE), new HashMap<>());
  }

  private static byte[] bytes(String[] words) {
    byte[] data = new byte[Integer.parseInt(words[2])];
    new Random(Long.parseLong(words[3])).nextBytes(data);
    return data;
  }

  private String blocks(String key) throws IOException {
    List<String> found = new ArrayList<>();
    for (OzoneKeyLocation one : bucket.getKey(key).getOzoneKeyLocations()) {
      found.add(one.getContainerID() + ":" + one.getLocalID());
    }
    return String.join(" ", found);
  }

  private String replicas() {
    List<String> found = new ArrayList<>();
    for (int dn = 0; dn < count; dn++) {
      for (Container<?> one : datanode(String.valueOf(dn)).getDatanodeStateMachine().getContainer().getContainerSet()) {
        ContainerData data = one.getContainerData();
        found.add(dn + "," + data.getContainerID() + "," + data.getState() + ","
            + Long.toHexString(data.getDataChecksum()));
      }
    }
    return String.join(" ", found);
  }

  private String datanodes() {
    List<String> found = new ArrayList<>();
    for (int dn = 0; dn < count; dn++) {
      DatanodeDetails details = datanode(String.valueOf(dn)).getDatanodeDetails();
      found.add(dn + "," + details.getUuidString() + "," + details.getStandalonePort().getValue() + ","
          + datanode(String.valueOf(dn)).getConf().get("hdds.datanode.dir"));
    }
    return String.join(" ", found);
  }
}
