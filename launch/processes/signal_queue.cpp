#include "launch/processes/signal_queue.h"

#include <sys/signalfd.h>
#include <unistd.h>

namespace lockstep::launch {

SignalQueue::SignalQueue(std::initializer_list<int> signals) {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int signal_number : signals) {
    // Under nohup SIGHUP is ignored and must remain so.
    struct sigaction action {};
    ::sigaction(signal_number, nullptr, &action);
    if (signal_number != SIGHUP || action.sa_handler != SIG_IGN)
      ::sigaddset(&wanted, signal_number);
  }
  // signalfd() reads only blocked signals. Later threads inherit the mask.
  ::pthread_sigmask(SIG_BLOCK, &wanted, &before_);
  descriptor_ = ::signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC);
}

SignalQueue::~SignalQueue() {
  ::close(descriptor_);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::vector<int> SignalQueue::take() {
  std::vector<int> all;
  signalfd_siginfo one{};
  while (::read(descriptor_, &one, sizeof one) == sizeof one)
    all.push_back(static_cast<int>(one.ssi_signo));
  return all;
}

}  // namespace lockstep::launch
