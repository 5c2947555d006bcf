// Log: prints one line on stderr for each event that a user should know about.
// Any thread.
#ifndef TF_HVD_BASE_LOG_H_
#define TF_HVD_BASE_LOG_H_

#include <string>

namespace tf_hvd {

enum class LogLevel { kTrace, kDebug, kInfo, kWarning, kError, kFatal };

// "warning" -> kWarning; false if the word does not name a level.
bool ParseLogLevel(const std::string& word, LogLevel* level);

// Writes "tf_hvd warning, rank 1 (host): text" in one write, so that lines of
// several ranks do not mix.
void WriteLog(LogLevel level, const std::string& who, const std::string& text);

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_LOG_H_
