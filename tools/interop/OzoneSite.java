import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.hadoop.hdds.client.ECReplicationConfig;
import org.apache.hadoop.hdds.client.RatisReplicationConfig;
import org.apache.hadoop.hdds.client.ReplicationConfig;
import org.apache.hadoop.hdds.conf.OzoneConfiguration;
import org.apache.hadoop.hdds.protocol.DatanodeDetails;
import org.apache.hadoop.hdds.protocol.proto.HddsProtos;
import org.apache.hadoop.hdds.protocol.proto.HddsProtos.ReplicationFactor;
import org.apache.hadoop.hdds.scm.container.ContainerInfo;
import org.apache.hadoop.hdds.scm.container.ReplicationManagerReport;
import org.apache.hadoop.hdds.scm.protocol.StorageContainerLocationProtocol;
import org.apache.hadoop.hdds.utils.HAUtils;
import org.apache.hadoop.ozone.ClientVersion;
import org.apache.hadoop.ozone.client.OzoneBucket;
import org.apache.hadoop.ozone.client.OzoneClient;
import org.apache.hadoop.ozone.client.OzoneClientFactory;
import org.apache.hadoop.ozone.client.OzoneKeyLocation;
import org.apache.hadoop.ozone.client.io.OzoneOutputStream;
import org.apache.hadoop.ozone.om.exceptions.OMException;
import org.apache.hadoop.security.UserGroupInformation;

/**
 * Ozone's own clients of an SCM and an OM that are processes of their own, led by lines on standard input. Each line
 * begins with a number, is carried out beside the others, and answered by one line "interop: NUMBER ok ..." or
 * "interop: NUMBER error ...". What ozone-site.xml in the class path says is what they know.
 *
 *   prepare                 the bucket of the keys, if it is not there
 *   write KEY BYTES SEED    a key of random bytes, three copies; answers container:block of each of its blocks
 *   coded KEY BYTES SEED    the same, erasure-coded: rs-3-2-1024k
 *   read KEY BYTES SEED     whether the key has these bytes: equal, differs, or absent
 *   delete KEY              close CONTAINER
 *   containers              container,state,type,keys of each
 *   report                  the replication manager's last one: time, then STATE=count of all that are not 0
 *   undeleted               transactions of deletes that not all datanodes have acknowledged
 *   datanodes               uuid,port for clients of each
 *   unsafe                  whether the SCM is in safe mode
 *   unmanage                stops the replication manager
 *   decommission HOST:PORT / recommission HOST:PORT
 */
public final class OzoneSite {
  private static final int PAGE = 1000;
  private final OzoneClient client;
  private final StorageContainerLocationProtocol scm;

  private OzoneSite(OzoneConfiguration conf) throws IOException {
    client = OzoneClientFactory.getRpcClient(conf);
    scm = HAUtils.getScmContainerClient(conf);
  }

  public static void main(String[] arguments) throws Exception {
    OzoneConfiguration conf = new OzoneConfiguration();
    if (arguments.length == 2) { // principal and keytab, in a secure cluster
      UserGroupInformation.setConfiguration(conf);
      UserGroupInformation.loginUserFromKeytab(arguments[0], arguments[1]);
    }
    OzoneSite site = new OzoneSite(conf);
    ExecutorService threads = Executors.newCachedThreadPool();
    System.out.println("interop: ready");
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String[] words = line.trim().split(" ");
      threads.execute(() -> say(words[0] + " " + site.answer(Arrays.copyOfRange(words, 1, words.length))));
    }
    System.exit(0);
  }

  private static synchronized void say(String text) {
    System.out.println("interop: " + text);
    System.out.flush();
  }

  private String answer(String[] words) {
    try {
      return "ok " + obey(words);
    } catch (Throwable error) {
      return "error " + error.toString().replace('\n', ' ');
    }
  }

  private String obey(String[] words) throws Exception {
    switch (words[0]) {
    case "prepare":
      return prepare();
    case "write":
      return write(words, RatisReplicationConfig.getInstance(ReplicationFactor.THREE));
    case "coded":
      return write(words, new ECReplicationConfig("rs-3-2-1024k"));
    case "read":
      return read(words);
    case "delete":
      bucket().deleteKey(words[1]);
      return "";
    case "close":
      scm.closeContainer(Long.parseLong(words[1]));
      return "";
    case "containers":
      return containers();
    case "report":
      return report();
    case "undeleted": {
      var summary = scm.getDeletedBlockSummary();
      return String.valueOf(summary == null ? 0 : summary.getTotalTransactionCount());
    }
    case "datanodes":
      return datanodes();
    case "unsafe":
      return String.valueOf(scm.inSafeMode());
    case "unmanage":
      scm.stopReplicationManager();
      return "";
    case "decommission":
      return words[0] + scm.decommissionNodes(List.of(words[1]), true);
    case "recommission":
      return words[0] + scm.recommissionNodes(List.of(words[1]));
    default:
      throw new IllegalArgumentException(words[0]);
    }
  }

  private OzoneBucket bucket() throws IOException {
    return client.getObjectStore().getVolume("interop").getBucket("keys");
  }

  private String prepare() throws IOException {
    try {
      client.getObjectStore().createVolume("interop");
    } catch (OMException error) {
      if (error.getResult() != OMException.ResultCodes.VOLUME_ALREADY_EXISTS) {
        throw error;
      }
    }
    try {
      client.getObjectStore().getVolume("interop").createBucket("keys");
    } catch (OMException error) {
      if (error.getResult() != OMException.ResultCodes.BUCKET_ALREADY_EXISTS) {
        throw error;
      }
    }
    return "";
  }

  private String write(String[] words, ReplicationConfig how) throws IOException {
    OzoneBucket bucket = bucket();
    try (OzoneOutputStream out = bucket.createKey(words[1], Integer.parseInt(words[2]), how, new HashMap<>())) {
      out.write(bytes(words));
    }
    List<String> found = new ArrayList<>();
    for (OzoneKeyLocation one : bucket.getKey(words[1]).getOzoneKeyLocations()) {
      found.add(one.getContainerID() + ":" + one.getLocalID());
    }
    return String.join(" ", found);
  }

  private String read(String[] words) throws IOException {
    try (InputStream in = bucket().readKey(words[1])) {
      return Arrays.equals(in.readAllBytes(), bytes(words)) ? "equal" : "differs";
    } catch (OMException error) {
      if (error.getResult() == OMException.ResultCodes.KEY_NOT_FOUND) {
        return "absent";
      }
      throw error;
    }
  }

  private static byte[] bytes(String[] words) {
    byte[] data = new byte[Integer.parseInt(words[2])];
    new Random(Long.parseLong(words[3])).nextBytes(data);
    return data;
  }

  private String containers() throws IOException {
    List<String> found = new ArrayList<>();
    long start = 1;
    while (true) {
      List<ContainerInfo> page = scm.listContainer(start, PAGE).getContainerInfoList();
      for (ContainerInfo one : page) {
        found.add(one.getContainerID() + "," + one.getState() + "," + one.getReplicationType() + ","
            + one.getNumberOfKeys());
        start = Math.max(start, one.getContainerID() + 1);
      }
      if (page.isEmpty()) {
        return String.join(" ", found);
      }
    }
  }

  private String datanodes() throws IOException {
    List<String> found = new ArrayList<>();
    for (HddsProtos.Node one : scm.queryNode(null, null, HddsProtos.QueryScope.CLUSTER, "",
        ClientVersion.CURRENT_VERSION)) {
      DatanodeDetails details = DatanodeDetails.getFromProtoBuf(one.getNodeID());
      found.add(details.getUuidString() + "," + details.getStandalonePort().getValue());
    }
    return String.join(" ", found);
  }

  private String report() throws IOException {
    ReplicationManagerReport report = scm.getReplicationManagerReport();
    List<String> found = new ArrayList<>(List.of(String.valueOf(report.getReportTimeStamp())));
    for (Map.Entry<String, Long> one : report.getStats().entrySet()) {
      if (one.getValue() != 0) {
        found.add(one.getKey() + "=" + one.getValue());
      }
    }
    return String.join(" ", found);
  }
}
