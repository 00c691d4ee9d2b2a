package @package@.systemd;

import com.sun.jna.Native;
import java.security.AccessController;
import java.security.PrivilegedAction;
import @package@.plugins.ClusterPlugin;
import @package@.plugins.Plugin;

/** Reports to systemd that the server is ready, as the vendor's module of this name. */
public class SystemdPlugin extends Plugin implements ClusterPlugin {
    private static native int sd_notify(int unset, String state);

    @Override
    public void onNodeStarted() {
        AccessController.doPrivileged((PrivilegedAction<Void>) () -> {
            if (System.getenv("NOTIFY_SOCKET") != null) {
                Native.register(SystemdPlugin.class, "libsystemd.so.0");
                sd_notify(0, "READY=1");
            }
            return null;
        });
    }
}
