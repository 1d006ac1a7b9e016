package coordinator

import "gregor/internal/api"

// OperationError turns the error of an operation into the one that a client of a coordinator understands: what goes wrong
// with the log is a matter of the coordinator to them.
func OperationError(err error) error {
	switch api.CodeOf(err) {
	case api.ErrUnknownTopicOrPartition.Code, api.ErrNotEnoughReplicas.Code, api.ErrRequestTimedOut.Code:
		return api.ErrCoordinatorNotAvailable
	case api.ErrNotLeaderOrFollower.Code, api.ErrKafkaStorageError.Code:
		return api.ErrNotCoordinator
	case api.ErrMessageTooLarge.Code, api.ErrRecordListTooLarge.Code, api.ErrInvalidFetchSize.Code:
		return api.ErrUnknownServerError
	case api.ErrNetworkException.Code:
		// The check of a transaction with its own coordinator failed; trying again is right, looking this one up isn't.
		return api.ErrCoordinatorLoadInProgress
	default:
		return err
	}
}
