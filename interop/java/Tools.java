import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs many of Kafka's command-line tools in one process, since each would need a second to start.
 *
 * Each line of standard input is a command: its input in base64, the class, and the arguments, separated by tabs. For each there
 * is a line of output: the exit code, and what the tool printed on both outputs in base64.
 */
public class Tools {
  static class Exited extends RuntimeException {
    final int code;
    Exited(int code) { this.code = code; }
  }

  public static void main(String[] a) throws Exception {
    PrintStream out = System.out, err = System.err;
    List<Runnable> hooks = new ArrayList<>();
    Exit.setExitProcedure((code, message) -> { throw new Exited(code); });
    Exit.setHaltProcedure((code, message) -> { throw new Exited(code); });
    Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line; (line = in.readLine()) != null; ) {
      String[] words = line.split("\t", -1);
      ByteArrayOutputStream o = new ByteArrayOutputStream(), e = new ByteArrayOutputStream();
      System.setIn(new ByteArrayInputStream(Base64.getDecoder().decode(words[0])));
      System.setOut(new PrintStream(o, true, StandardCharsets.UTF_8));
      System.setErr(new PrintStream(e, true, StandardCharsets.UTF_8));
      hooks.clear();
      int code = 0;
      try {
        Class.forName(words[1]).getMethod("main", String[].class).invoke(null, (Object) Arrays.copyOfRange(words, 2, words.length));
      } catch (java.lang.reflect.InvocationTargetException x) {
        if (x.getCause() instanceof Exited) {
          code = ((Exited) x.getCause()).code;
        } else {
          code = -1;
          x.getCause().printStackTrace();
        }
      }
      // What the tool wanted to happen when its process ends.
      for (Runnable hook : new ArrayList<>(hooks)) {
        Thread t = new Thread(hook);
        t.setDaemon(true);
        t.start();
        t.join(60000);
      }
      // Threads that a tool left behind may print still, and this process's output is for the answers alone.
      System.setOut(new PrintStream(OutputStream.nullOutputStream()));
      System.setErr(err);
      out.println(code + "\t" + Base64.getEncoder().encodeToString(o.toByteArray()) + "\t" + Base64.getEncoder().encodeToString(e.toByteArray()));
      out.flush();
    }
    Runtime.getRuntime().halt(0);
  }
}
