import java.nio.file.Path;
import java.nio.file.Paths;
import @package@.common.settings.KeyStoreWrapper;

/** Makes an empty keystore in a directory, as the vendor's command "keystore create". */
public class CreateKeystore {
    public static void main(String[] arguments) throws Exception {
        Path directory = Paths.get(arguments[0]);
        if (KeyStoreWrapper.load(directory) == null) {
            KeyStoreWrapper.create().save(directory, new char[0]);
        }
    }
}
